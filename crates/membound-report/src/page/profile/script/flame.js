// Flame graphs, callers above: by code, by object with the code below it, and by the call
// chains that allocated. A frame's colour is the level that most of its stall waits for.
((m) => {
  "use strict";
  const { raw, state, make } = m;
  const holder = document.getElementById("flame-graph");
  if (!holder) return;
  const status = document.getElementById("flame-status");
  const search = document.getElementById("flame-find");
  const svgNs = document.querySelector("svg").namespaceURI;
  const ROW = 19;
  let root = null;
  let zoom = null;
  let boxes = [];
  let current = -1;
  let wanted = "";

  const node = (name, parent) => ({ name, parent, weight: 0, stall: 0, levels: new Float64Array(raw.levels.length + 2), children: new Map() });
  const child = (parent, key, name) => {
    let found = parent.children.get(key);
    if (!found) {
      found = node(name, parent);
      parent.children.set(key, found);
    }
    return found;
  };
  const chain = (stack) => {
    const out = [];
    for (let at = stack; at >= 0; at = m.stacks.parent[at]) out.push(m.stacks.frame[at]);
    return out.reverse();
  };
  const chains = new Map();
  const build = (sum) => {
    const out = node("all", null);
    for (let g = 0; g < m.groups; g++) {
      if (sum.weight[g] <= 0) continue;
      const path = [out];
      const step = (key, name) => path.push(child(path[path.length - 1], key, name));
      const object = m.by.object.keyOf(g);
      if (state.flame !== "code") {
        const allocated = raw.objects[object];
        if (state.flame === "allocation" && allocated) {
          for (const [id, place] of [...allocated.chain].reverse()) step(`a${id} ${place}`, `${m.name(id)} ${m.name(place)}`);
        }
        step(`o${object}`, m.by.object.keys[object].name);
      }
      if (state.flame !== "allocation") {
        const stack = m.of.stack[g];
        if (!chains.has(stack)) chains.set(stack, chain(stack));
        for (const frame of chains.get(stack)) step(m.frames.function[frame], m.name(m.frames.function[frame]));
        const frame = m.stacks.frame[stack];
        if (m.frames.line[frame] !== null && m.frames.file[frame] !== null) step(`l${m.frames.file[frame]}:${m.frames.line[frame]}`, `${m.base(m.name(m.frames.file[frame]))}:${m.frames.line[frame]}`);
      }
      const level = m.by.level.keyOf(g);
      for (const it of path) {
        it.weight += sum.weight[g];
        it.stall += sum.stall[g];
        it.levels[level] += sum.stall[g];
      }
    }
    return out;
  };
  const size = (it) => (state.weight === "stall" ? it.stall : it.weight);
  const mainLevel = (it) => {
    // What mostly computes is not coloured by what little it waits for.
    if (it.stall < it.weight * 0.05) return "lv9";
    let best = 0;
    it.levels.forEach((stall, level) => { if (stall > it.levels[best]) best = level; });
    return m.color(best);
  };
  const describe = (it) => {
    const whole = size(root) || 1;
    return `${it.name}: ${m.seconds(it.stall)} stalled of ${m.seconds(it.weight)}; ${m.percent(size(it) / whole)} of what is shown`;
  };

  const draw = () => {
    const width = Math.max(280, holder.clientWidth - 2);
    const shown = zoom || root;
    const above = [];
    for (let it = shown.parent; it; it = it.parent) above.unshift(it);
    boxes = [];
    above.forEach((it, depth) => boxes.push({ it, x: 0, w: width, depth, above: true }));
    const place = (it, x, scale, depth) => {
      const w = size(it) * scale;
      if (w < 0.6) return;
      boxes.push({ it, x, w, depth });
      let at = x;
      for (const next of [...it.children.values()].sort((a, b) => size(b) - size(a))) {
        place(next, at, scale, depth + 1);
        at += size(next) * scale;
      }
    };
    const total = size(shown);
    if (total > 0) place(shown, 0, width / total, above.length);
    const depth = boxes.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
    const svg = document.createElementNS(svgNs, "svg");
    svg.setAttribute("width", width);
    svg.setAttribute("height", depth * ROW);
    svg.setAttribute("viewBox", `0 0 ${width} ${depth * ROW}`);
    svg.setAttribute("class", "flames");
    let matched = 0;
    boxes.forEach((box, index) => {
      const group = document.createElementNS(svgNs, "g");
      const hit = wanted && box.it.name.toLowerCase().includes(wanted);
      if (hit) {
        let inside = false;
        for (let it = box.it.parent; it; it = it.parent) inside = inside || it.name.toLowerCase().includes(wanted);
        if (!inside && !box.above) matched += size(box.it);
      }
      group.setAttribute("class", `${mainLevel(box.it)}${box.above ? " above" : ""}${hit ? " hit" : wanted ? " miss" : ""}`);
      group.dataset.box = index;
      const rect = document.createElementNS(svgNs, "rect");
      rect.setAttribute("x", box.x.toFixed(1));
      rect.setAttribute("y", box.depth * ROW);
      rect.setAttribute("width", Math.max(0.5, box.w - 0.6).toFixed(1));
      rect.setAttribute("height", ROW - 1);
      const title = document.createElementNS(svgNs, "title");
      title.textContent = describe(box.it);
      group.append(rect, title);
      const letters = Math.floor((box.w - 6) / 7.1);
      if (letters >= 3) {
        const text = document.createElementNS(svgNs, "text");
        text.setAttribute("x", (box.x + 4).toFixed(1));
        text.setAttribute("y", box.depth * ROW + 13.5);
        const name = box.it.name.length <= letters ? box.it.name : m.plain(box.it.name);
        text.textContent = name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
        group.append(text);
      }
      svg.append(group);
    });
    holder.replaceChildren(svg);
    holder.dataset.boxes = boxes.length;
    if (total <= 0) holder.replaceChildren(make("p", { class: "note" }, state.weight === "stall" ? "Nothing in the selection is stalled." : "No sample is in the selection."));
    status.textContent = wanted && total > 0 ? `${m.percent(matched / total)} of what is shown has “${wanted}” in it` : describe(shown);
  };
  const mark = (index) => {
    holder.querySelector("g.here")?.classList.remove("here");
    current = index;
    if (index < 0 || !boxes[index]) return;
    const group = holder.querySelector(`g[data-box="${index}"]`);
    group?.classList.add("here");
    status.textContent = describe(boxes[index].it);
    const top = boxes[index].depth * ROW;
    if (top < holder.scrollTop) holder.scrollTop = top;
    if (top + ROW > holder.scrollTop + holder.clientHeight) holder.scrollTop = top + ROW - holder.clientHeight;
  };
  const enter = (index) => {
    if (!boxes[index]) return;
    zoom = boxes[index].it.parent ? boxes[index].it : null;
    draw();
    mark(boxes.findIndex((box) => box.it === (zoom || root)));
  };
  holder.addEventListener("click", (event) => {
    const group = event.target.closest("g[data-box]");
    if (group) enter(Number(group.dataset.box));
  });
  holder.addEventListener("pointermove", (event) => {
    const group = event.target.closest("g[data-box]");
    if (group) mark(Number(group.dataset.box));
  });
  holder.addEventListener("keydown", (event) => {
    const box = boxes[current];
    const by = (test) => boxes.reduce((best, other, index) => (test(other) && (best < 0 || Math.abs(other.x - (box?.x || 0)) < Math.abs(boxes[best].x - (box?.x || 0))) ? index : best), -1);
    const go = (index) => { event.preventDefault(); if (index >= 0) mark(index); };
    if (event.key === "Escape") { zoom = null; draw(); mark(0); }
    else if (!box) { if (event.key.startsWith("Arrow")) go(0); }
    else if (event.key === "Enter") { event.preventDefault(); enter(current); }
    else if (event.key === "ArrowUp") go(boxes.findIndex((other) => other.it === box.it.parent));
    else if (event.key === "ArrowDown") go(by((other) => other.it.parent === box.it));
    else if (event.key === "ArrowRight") go(by((other) => other.depth === box.depth && other.x > box.x));
    else if (event.key === "ArrowLeft") go(by((other) => other.depth === box.depth && other.x < box.x));
  });
  search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); draw(); });
  for (const button of document.querySelectorAll("#flame button[data-flame]")) {
    button.addEventListener("click", () => { state.flame = button.dataset.flame; m.update("flame"); });
  }
  for (const button of document.querySelectorAll("#flame button[data-weight]")) {
    button.addEventListener("click", () => { state.weight = button.dataset.weight; m.update("flame"); });
  }
  let width = 0;
  new ResizeObserver(() => {
    if (root && holder.clientWidth !== width) { width = holder.clientWidth; draw(); }
  }).observe(holder);
  m.views.push((sum, changed) => {
    if (changed === "table") return;
    root = build(sum);
    zoom = null;
    current = -1;
    width = holder.clientWidth;
    draw();
    for (const button of document.querySelectorAll("#flame button[data-flame]")) button.setAttribute("aria-pressed", String(button.dataset.flame === state.flame));
    for (const button of document.querySelectorAll("#flame button[data-weight]")) button.setAttribute("aria-pressed", String(button.dataset.weight === state.weight));
  });
})(membound);
