// What opens when something is pressed: source and assembly of a function with the stall of
// each line, and the inside of an object.
((m) => {
  "use strict";
  const { raw, state, make } = m;

  // Time and stall by a key of frames, inside the selection.
  const sumsBy = (sum, keyOf) => {
    const out = new Map();
    for (let g = 0; g < m.groups; g++) {
      if (sum.weight[g] <= 0) continue;
      const key = keyOf(m.stacks.frame[m.of.stack[g]]);
      let row = out.get(key);
      if (!row) out.set(key, (row = { weight: 0, stall: 0, levels: new Float64Array(raw.levels.length + 2) }));
      row.weight += sum.weight[g];
      row.stall += sum.stall[g];
      row.levels[m.by.level.keyOf(g)] += sum.stall[g];
    }
    return out;
  };
  const code = document.getElementById("listing");
  const pick = document.getElementById("pick-function");
  let chosenLine = null;
  const cells = (row, sum, most, shares) => {
    // Samples in cells where there are some; else what the run's own listing says.
    if (row) return [make("td", {}, row.stall > 0 ? m.percent(row.stall / sum.total) : ""), make("td", {}, row.weight > 0 ? m.percent(row.weight / sum.total) : ""), make("td", {}, m.bar(row.levels, most))];
    if (m.filtered() || !shares) return [make("td"), make("td"), make("td")];
    return [make("td", {}, shares[1] > 0 ? m.percent(shares[1]) : ""), make("td", {}, shares[0] > 0 ? m.percent(shares[0]) : ""), make("td")];
  };
  // The end of a path, whole components; what is cut stands in the tooltip.
  const ending = (path) => {
    const MOST = 44;
    if (path.length <= MOST) return path;
    const tail = path.slice(-MOST);
    const cut = tail.indexOf("/");
    return `…${cut >= 0 && cut < MOST - 1 ? tail.slice(cut) : tail}`;
  };
  const table = (title, heads, lines) => {
    const scroll = make("div", { class: "scroll code", tabindex: "0", role: "group", "aria-label": title });
    scroll.append(make("table", { class: "code" }, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...lines)));
    return make("div", {}, make("h3", { title }, ending(title)), scroll);
  };
  const drawCode = (sum) => {
    const listing = raw.listings[state.listing];
    if (!code || !listing) return;
    const byLine = sumsBy(sum, (f) => (m.frames.function[f] === listing.function || m.frames.file[f] === listing.file ? `${m.frames.file[f]} ${m.frames.line[f]}` : ""));
    const byAddress = sumsBy(sum, (f) => `${m.frames.module[f]} ${m.frames.address[f]}`);
    byLine.delete("");
    const most = (rows) => [...rows.values()].reduce((most, row) => Math.max(most, row.stall), 0);
    const [lineMost, addressMost] = [most(byLine), most(byAddress)];
    const parts = [];
    if (listing.source.length) {
      parts.push(table(m.name(listing.file) || "source", ["stalled", "time", "", "", "source"], listing.source.map(([line, text, time, stall]) => {
        const row = make("tr", { "data-line": line, class: chosenLine === line ? "chosen" : "" }, ...cells(byLine.get(`${listing.file} ${line}`), sum, lineMost, [time, stall]));
        const button = make("button", { type: "button", class: "line" }, String(line));
        button.addEventListener("click", () => { chosenLine = chosenLine === line ? null : line; drawCode(m.current()); });
        row.append(make("td", {}, button), make("td", {}, make("code", {}, text)));
        return row;
      })));
    } else parts.push(make("p", { class: "note" }, "No source: the module has no line numbers, or the file could not be read."));
    if (listing.assembly.length) {
      parts.push(table("assembly", ["stalled", "time", "", "", "instruction", "executed"], listing.assembly.map(([address, text, line, time, stall, executed, ends]) => {
        const row = make("tr", { class: line !== null && line === chosenLine ? "chosen" : "" }, ...cells(byAddress.get(`${listing.module} ${address}`), sum, addressMost, [time, stall]));
        row.append(make("td", { class: "address" }, address), make("td", {}, make("code", {}, text)), make("td", {}, m.counted(executed, ends)));
        return row;
      })));
    }
    code.replaceChildren(...parts);
    for (const scroll of code.querySelectorAll(".code")) {
      // What is waited for most stands in sight.
      const widths = [...scroll.querySelectorAll("tr i")].map((bar) => [parseFloat(bar.style.width), bar.closest("tr")]);
      const hottest = widths.reduce((most, one) => (one[0] > most[0] ? one : most), [0, null])[1];
      const target = scroll.querySelector("tr.chosen") || hottest;
      if (target) scroll.scrollTop = target.offsetTop - scroll.clientHeight / 3;
    }
  };
  m.openCode = (frame) => {
    let found = raw.listings.findIndex((it) => it.function === m.frames.function[frame] && it.module === m.frames.module[frame]);
    if (found < 0) found = raw.listings.findIndex((it) => it.module === m.frames.module[frame] && it.assembly.some((row) => row[0] === m.frames.address[frame]));
    if (found < 0 || !pick) return;
    state.listing = found;
    pick.value = String(found);
    chosenLine = m.frames.line[frame];
    drawCode(m.current());
  };
  if (pick) {
    raw.listings.forEach((listing, index) => pick.append(make("option", { value: index }, m.name(listing.function))));
    pick.addEventListener("change", () => { state.listing = Number(pick.value); chosenLine = null; drawCode(m.current()); });
  }

  const inside = document.getElementById("object-inside");
  const pickObject = document.getElementById("pick-object");
  const drawObject = () => {
    const object = raw.objects[state.object];
    if (!inside || !object) return;
    const parts = [make("p", {}, make("b", {}, m.name(object.name)), ` ${object.about}`)];
    if (object.shared) parts.push(make("p", { class: "missing" }, "Threads fight over lines of it: see false sharing."));
    if (object.chain.length) {
      const list = make("ol", { class: "chain" }, ...object.chain.map(([id, place]) => make("li", {}, make("code", {}, m.name(id)), make("small", {}, ` ${m.name(place)}`))));
      parts.push(make("div", {}, make("h3", {}, "Allocated by (innermost first)"), list));
    }
    if (object.offsets.length) {
      const most = object.offsets.reduce((most, row) => Math.max(most, row[3]), 0);
      const lines = [...object.offsets].sort((a, b) => a[0] - b[0]).map(([offset, bytes, accesses, stall, ns]) => {
        const fill = make("i", { class: "lv3" });
        fill.style.width = `${most > 0 ? ((stall / most) * 100).toFixed(1) : 0}%`;
        return make("tr", {}, make("th", { scope: "row" }, `+${offset}`), make("td", {}, `${bytes} B`), make("td", {}, m.percent(stall)), make("td", {}, make("span", { class: "levelbar", "aria-hidden": "true" }, fill)), make("td", {}, m.short(accesses)), make("td", {}, ns === null ? "" : `${m.number(ns)} ns`));
      });
      parts.push(make("div", {}, make("h3", {}, "Where inside (whole run)"), make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "offsets" }, make("table", { class: "run names-first inside" }, make("thead", {}, make("tr", {}, ...["offset", "size", "of its stall", "", "accesses", "latency"].map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...lines)))));
    }
    // The code that waits for it inside the selection, whatever object is selected.
    const sum = m.sums("object");
    for (let g = 0; g < m.groups; g++) if (m.by.object.keyOf(g) !== state.object) sum.weight[g] = 0;
    const rows = m.rows("line", sum).sort((a, b) => b.stall - a.stall).slice(0, 12);
    const total = rows.reduce((total, row) => total + row.stall, 0);
    if (rows.length) {
      const lines = rows.map((row) => {
        const button = make("button", { type: "button", class: "pick" }, row.it.name);
        button.addEventListener("click", () => { m.openCode(row.it.frame); document.getElementById("code")?.scrollIntoView(); });
        return make("tr", {}, make("td", {}, m.percent(total > 0 ? row.stall / total : 0)), make("td", {}, m.bar(row.levels, rows[0].stall)), make("th", { scope: "row" }, button, make("small", {}, ` ${row.it.beside}`)));
      });
      parts.push(make("div", {}, make("h3", {}, "Code that waits for it"), make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "code" }, make("table", { class: "run" }, make("tbody", {}, ...lines)))));
    }
    inside.replaceChildren(parts[0], ...(object.shared ? [parts[1]] : []), make("div", { class: "pair" }, ...parts.slice(object.shared ? 2 : 1)));
  };
  m.openObject = (index) => {
    if (!raw.objects[index]) return;
    state.object = index;
    if (pickObject) pickObject.value = String(index);
    drawObject();
  };
  if (pickObject) {
    raw.objects.forEach((object, index) => pickObject.append(make("option", { value: index }, m.name(object.name))));
    pickObject.addEventListener("change", () => m.openObject(Number(pickObject.value)));
  }
  m.views.push((sum, changed) => {
    if (changed === "table" || changed === "flame") return;
    drawCode(sum);
    if (state.object < 0 && raw.objects.length) state.object = 0;
    if (state.filter.object !== undefined && raw.objects[state.filter.object]) m.openObject(state.filter.object);
    drawObject();
  });

  m.restore();
  m.update("all");
  window.addEventListener("hashchange", () => m.restore() && m.update("all"));
  document.documentElement.classList.add("ready");
})(membound);
