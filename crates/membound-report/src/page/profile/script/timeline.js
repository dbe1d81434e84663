// The timeline: lanes of threads and of traffic, and the selection of a span by pointer or
// keyboard. What is selected beside the span (a thread, an object) is drawn; the rest is
// left out of the lanes.
((m) => {
  "use strict";
  const { raw, state, make } = m;
  const lanes = document.getElementById("lanes");
  if (!lanes) return;
  const plot = lanes.querySelector(".plot");
  const shade = document.getElementById("span");
  const cursor = document.getElementById("cursor");
  const said = document.getElementById("selected");
  const bin_s = raw.duration_s / raw.bins;
  let focus = Math.floor(raw.bins / 2);
  let anchor = null;

  const area = (values, scale) => {
    let d = "M0 100";
    for (let i = 0; i < values.length; i++) {
      const top = 100 - Math.min(100, scale > 0 ? (values[i] / scale) * 100 : 0);
      d += `V${top.toFixed(1)}H${i + 1}`;
    }
    return `${d}V100Z`;
  };
  const draw = () => {
    for (const svg of lanes.querySelectorAll("svg.lane[data-scale]")) {
      const thread = svg.dataset.thread === undefined ? null : Number(svg.dataset.thread);
      const { weight, stall } = m.lane(thread);
      const scale = Number(svg.dataset.scale) * bin_s;
      svg.querySelector(".busy").setAttribute("d", area(weight, scale));
      svg.querySelector(".stalled").setAttribute("d", area(stall, scale));
    }
    for (const button of lanes.querySelectorAll("button[data-thread]")) {
      button.setAttribute("aria-pressed", String(state.filter.thread === Number(button.dataset.thread)));
    }
  };

  const traffic = () => {
    const [from, to] = m.span_s() || [raw.from_s, raw.from_s + raw.duration_s];
    return raw.bandwidth.map((domain) => {
      let [read, write, time] = [0, 0, 0];
      domain.moments.forEach(([t, r, w], index) => {
        const next = domain.moments[index + 1];
        const end = next ? next[0] : index ? t + (t - domain.moments[index - 1][0]) : raw.from_s + raw.duration_s;
        const inside = Math.min(end, to) - Math.max(t, from);
        if (inside > 0) {
          read += r * inside;
          write += w * inside;
          time += inside;
        }
      });
      return time > 0 ? `${domain.name} ${m.number(read / time)} GB/s read, ${m.number(write / time)} GB/s written (${domain.basis})` : "";
    }).filter(Boolean);
  };
  const show = () => {
    if (state.span) {
      const [from, to] = state.span;
      shade.hidden = false;
      shade.style.left = `${(from / raw.bins) * 100}%`;
      shade.style.width = `${((to - from) / raw.bins) * 100}%`;
    } else shade.hidden = true;
    const words = [];
    const span = m.span_s();
    words.push(span ? `${m.seconds(span[0])} to ${m.seconds(span[1])} selected` : raw.from_s > 0 ? `${m.seconds(raw.from_s)} to ${m.seconds(raw.from_s + raw.duration_s)}, all that the page is of` : `the whole run, ${m.seconds(raw.duration_s)}`);
    words.push(...traffic());
    said.textContent = words.join(" · ");
  };
  const point = () => {
    cursor.hidden = false;
    cursor.style.left = `${((focus + 0.5) / raw.bins) * 100}%`;
  };

  const at = (event) => {
    const box = plot.getBoundingClientRect();
    return Math.max(0, Math.min(raw.bins, Math.round(((event.clientX - box.left) / box.width) * raw.bins)));
  };
  let start = null;
  const select = (a, b) => {
    state.span = a === b ? null : [Math.min(a, b), Math.max(a, b)];
  };
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = at(event);
    plot.setPointerCapture(event.pointerId);
    plot.focus({ preventScroll: true });
  });
  plot.addEventListener("pointermove", (event) => {
    if (start === null) return;
    select(start, at(event));
    show();
  });
  plot.addEventListener("pointerup", (event) => {
    if (start === null) return;
    select(start, at(event));
    start = null;
    m.update("span");
  });
  plot.addEventListener("pointercancel", () => {
    start = null;
  });
  plot.addEventListener("keydown", (event) => {
    const step = event.ctrlKey || event.altKey ? Math.ceil(raw.bins / 20) : 1;
    const moves = { ArrowLeft: -step, ArrowRight: step, PageUp: -Math.ceil(raw.bins / 10), PageDown: Math.ceil(raw.bins / 10), Home: -raw.bins, End: raw.bins };
    if (event.key === "Escape") {
      state.span = null;
      anchor = null;
      return m.update("span");
    }
    if (event.key === "Enter" || event.key === " ") {
      // Marks the beginning; with a beginning marked, selects up to here.
      event.preventDefault();
      if (anchor === null) {
        anchor = focus;
        said.textContent = `selecting from ${m.seconds(raw.from_s + focus * bin_s)}: move, then press Enter`;
        return point();
      }
      state.span = [Math.min(anchor, focus), Math.max(anchor, focus) + 1];
      anchor = null;
      return m.update("span");
    }
    if (!(event.key in moves)) return;
    event.preventDefault();
    const before = focus;
    focus = Math.max(0, Math.min(raw.bins - 1, focus + moves[event.key]));
    point();
    if (event.shiftKey) {
      if (anchor === null) anchor = before;
      state.span = [Math.min(anchor, focus), Math.max(anchor, focus) + 1];
      m.update("span");
    }
  });
  plot.addEventListener("keyup", (event) => {
    if (event.key === "Shift") anchor = null;
  });
  plot.addEventListener("blur", () => {
    cursor.hidden = true;
  });
  for (const button of lanes.querySelectorAll("button[data-thread]")) {
    button.addEventListener("click", () => m.toggle("thread", Number(button.dataset.thread)));
  }

  // What is selected, each with a way to take it back.
  const chips = document.getElementById("chips");
  const chip = (text, clear) => {
    const button = make("button", { type: "button", class: "chip", "aria-label": `${text}: remove` }, text, make("b", { "aria-hidden": "true" }, " ×"));
    button.addEventListener("click", clear);
    return button;
  };
  const showChips = () => {
    chips.replaceChildren();
    const span = m.span_s();
    if (span) chips.append(chip(`${m.seconds(span[0])} – ${m.seconds(span[1])}`, () => { state.span = null; m.update("span"); }));
    for (const kind of m.kinds) {
      if (kind in state.filter) chips.append(chip(`${kind}: ${m.by[kind].keys[state.filter[kind]].name}`, () => m.toggle(kind, state.filter[kind])));
    }
    if (chips.children.length > 1) {
      const all = make("button", { type: "button", class: "chip clear" }, "clear all");
      all.addEventListener("click", () => { state.span = null; state.filter = {}; m.update("filter"); });
      chips.append(all);
    }
    document.getElementById("selection").classList.toggle("active", chips.children.length > 0);
    if (!chips.children.length) chips.append(make("span", { class: "hint" }, "nothing: the whole run is shown. Drag over the timeline, or press a row."));
  };

  const tiles = document.getElementById("now");
  m.views.push((sum, changed) => {
    if (changed !== "span") draw();
    show();
    showChips();
    tiles.replaceChildren(
      `${m.seconds(sum.total)} CPU, memory bound `,
      make("b", {}, sum.total > 0 ? m.percent(sum.stalled / sum.total) : "n/a"),
      m.bar(sum.levels, sum.total),
    );
  });
})(membound);
