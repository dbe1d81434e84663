// The run's data, what is selected of it, and what follows from both. Everything that is
// shown is computed from the sums of groups: samples of one thread, call chain, object and
// level. All text is set as text, never as markup.
const membound = (() => {
  "use strict";
  const raw = JSON.parse(document.getElementById("membound-run").textContent);
  const cells = raw.cells;
  const groups = cells.groups.length / 5;
  const count = cells.time.length;
  const column = () => new Int32Array(groups);
  const of = { thread: column(), stack: column(), object: column(), level: column(), first: column(), last: column() };
  const bin = new Int32Array(count);
  for (let g = 0, at = 0; g < groups; g++) {
    const [thread, stack, object, level, length] = cells.groups.slice(5 * g, 5 * g + 5);
    of.thread[g] = thread;
    of.stack[g] = stack;
    of.object[g] = object;
    of.level[g] = level;
    of.first[g] = at;
    for (let time = 0, end = at + length; at < end; at++) {
      time += cells.time[at];
      bin[at] = time;
    }
    of.last[g] = at;
  }
  const { frames, stacks, names } = raw;
  const name = (id) => (id === null || id === undefined ? "" : names[id]);

  // The keys of a group in each grouping, and what stands for a key. Keys are made once.
  const grouping = (title, keyOf, show) => {
    const ids = new Map();
    const keys = [];
    const byStack = new Int32Array(stacks.frame.length).fill(-1);
    const intern = (text, make) => {
      let id = ids.get(text);
      if (id === undefined) {
        id = keys.length;
        ids.set(text, id);
        keys.push(make());
      }
      return id;
    };
    return { title, ids, keys, byStack, intern, keyOf, show };
  };
  const innermost = (stack) => stacks.frame[stack];
  // The function that has the instruction, whatever was inlined into it.
  const outermost = (stack) => {
    let at = stack;
    while (frames.inlined[stacks.frame[at]] && stacks.parent[at] >= 0) at = stacks.parent[at];
    return stacks.frame[at];
  };
  const code = (title, frameOf, text, make) => {
    const it = grouping(title);
    it.keyOf = (g) => {
      const stack = of.stack[g];
      if (it.byStack[stack] < 0) {
        const frame = frameOf(stack);
        it.byStack[stack] = it.intern(text(frame), () => make(frame));
      }
      return it.byStack[stack];
    };
    return it;
  };
  const place = (file, line) => (file === null ? "" : line === null ? name(file) : `${name(file)}:${line}`);
  // A function's name without the arguments of its templates and its parameters.
  const plain = (text) => {
    const keep = text.replace(/\boperator(<=>|<<=|>>=|<<|>>|<=|>=|\(\)|->|<|>)/g, (found, signs) => `operator${[...signs].map((sign) => String.fromCharCode(0xe000 + sign.charCodeAt(0))).join("")}`).replace(/->/g, "-\ue03e");
    let out = keep;
    for (let before = ""; before !== out; ) [before, out] = [out, out.replace(/((?:[\w:}\]\ue000-\uf8ff]|operator[-+*/=!&|^%~,]+) ?)<[^<>]*>/g, "$1")];
    out = out.replace("(anonymous namespace)", "\uf000").replace(/([\w:}\]\ue000-\uf8ff]|operator[-+*/=!&|^%~,]+)\(.*$/, "$1").replace("\uf000", "(anonymous namespace)").replace(/::::/g, "::").replace(/::$/, "").trim();
    return (out || keep).replace(/[\ue000-\ue07f]/g, (sign) => String.fromCharCode(sign.charCodeAt(0) - 0xe000));
  };
  const base = (path) => path.slice(path.lastIndexOf("/") + 1);
  const figuresOf = (rows, text) => new Map(rows.map((row) => [text(row), row]));
  const functionRows = figuresOf(raw.functions, (row) => `${row[0]} ${row[1]}`);
  const lineRows = figuresOf(raw.lines, (row) => `${row[0]} ${row[1]}`);
  const instructionRows = figuresOf(raw.instructions, (row) => `${row[0]} ${row[1]}`);
  const noFigures = [0, 0, null, null, null, null, 0, null, null, null, null, null, null];
  const listed = new Map();
  raw.listings.forEach((listing) => {
    for (const row of listing.assembly) listed.set(`${listing.module} ${row[0]}`, row[1]);
  });

  const by = {};
  by.function = code(
    "function",
    outermost,
    (f) => `${frames.function[f]} ${frames.module[f]}`,
    (f) => {
      const row = functionRows.get(`${frames.function[f]} ${frames.module[f]}`);
      return { name: name(frames.function[f]), beside: base(name(frames.module[f])), figures: row ? row[2] : noFigures, periods: row && row[3], frame: f };
    },
  );
  by.line = code(
    "line",
    innermost,
    (f) => (frames.file[f] === null ? `? ${frames.function[f]}` : `${frames.file[f]} ${frames.line[f]}`),
    (f) => {
      const row = lineRows.get(`${frames.file[f]} ${frames.line[f]}`);
      const known = frames.file[f] !== null;
      return {
        name: row ? name(row[3]) : known ? place(frames.file[f], frames.line[f]) : `${name(frames.function[f])}, no line`,
        beside: row && row[4] !== null ? name(row[4]) : row || known ? name(frames.function[f]) : base(name(frames.module[f])),
        figures: row ? row[2] : noFigures,
        periods: row && row[5],
        frame: f,
      };
    },
  );
  by.instruction = code(
    "instruction",
    innermost,
    (f) => `${frames.module[f]} ${frames.address[f]}`,
    (f) => {
      const key = `${frames.module[f]} ${frames.address[f]}`;
      const row = instructionRows.get(key);
      const text = row ? name(row[3]) : listed.get(key) || `${base(name(frames.module[f]))}+${frames.address[f]}`;
      const where = base(place(frames.file[f], frames.line[f])) || name(frames.function[f]);
      return { name: text, beside: `${frames.address[f]} ${where}`, figures: row ? row[2] : noFigures, periods: row && row[4], frame: f };
    },
  );
  // Behind the list: nothing, and what has no row on this page.
  const direct = (title, list, column, make, absent, others) => {
    const it = grouping(title);
    it.keyOf = (g) => (column[g] < 0 ? list.length : column[g] < list.length ? column[g] : list.length + 1);
    it.keys = list.map(make).concat([absent, others].map((name) => ({ name, beside: "", figures: noFigures })));
    return it;
  };
  by.object = direct("object", raw.objects, of.object, (row) => ({ name: name(row.name), beside: row.about, figures: row.figures, periods: row.periods, mark: row.shared ? "false sharing" : "" }), "no object known", "other objects");
  by.thread = direct("thread", raw.threads, of.thread, (row) => ({ name: name(row.name), beside: `${row.tid}`, figures: row.figures, periods: row.periods }), "no thread known", "other threads");
  by.level = direct("level", raw.levels, of.level, (row) => ({ name: name(row[0]), beside: "", figures: noFigures }), "not stalled", "other levels");
  const kinds = Object.keys(by);
  // All at once and in one order, so that a key in the page's address means the same again.
  for (const kind of kinds) for (let g = 0; g < groups; g++) by[kind].keyOf(g);

  // What is selected.
  const state = { span: null, filter: {}, by: "line", sort: "stall", down: true, flame: "code", weight: "stall", listing: 0, object: -1 };
  const passes = (g, except) => kinds.every((kind) => kind === except || !(kind in state.filter) || by[kind].keyOf(g) === state.filter[kind]);
  const filtered = () => state.span !== null || Object.keys(state.filter).length > 0;

  // The period that a span of the timeline lies in, and the two that the selection begins and
  // ends in; null where executions and latencies cannot follow it.
  const periodOf = (at) => Math.floor((at * raw.periods) / raw.bins);
  const outer = () => (state.span && raw.periods ? [periodOf(state.span[0]), periodOf(state.span[1] - 1)] : null);

  // Sums of every group inside the selection, in seconds. Of the outer periods also the time
  // inside and all of it, which divide what is known of a whole period only.
  const sums = (except) => {
    const [from, to] = state.span || [0, raw.bins];
    const ends = outer();
    const out = { weight: new Float64Array(groups), stall: new Float64Array(groups), total: 0, stalled: 0, levels: new Float64Array(raw.levels.length + 2), ends, inside: [new Float64Array(groups), new Float64Array(groups)], all: [new Float64Array(groups), new Float64Array(groups)] };
    for (let g = 0; g < groups; g++) {
      if (!passes(g, except)) continue;
      let weight = 0;
      let stall = 0;
      for (let at = of.first[g]; at < of.last[g]; at++) {
        const inside = bin[at] >= from && bin[at] < to;
        const end = ends ? ends.indexOf(periodOf(bin[at])) : -1;
        if (end >= 0) {
          out.all[end][g] += cells.weight[at];
          if (inside) out.inside[end][g] += cells.weight[at];
        }
        if (inside) {
          weight += cells.weight[at];
          stall += cells.stall[at];
        }
      }
      out.weight[g] = weight * cells.unit_s;
      out.stall[g] = stall * cells.unit_s;
      out.total += out.weight[g];
      out.stalled += out.stall[g];
      out.levels[by.level.keyOf(g)] += out.stall[g];
    }
    return out;
  };

  // Rows of a grouping with their sums and levels.
  const rows = (kind, sum) => {
    const grouping = by[kind];
    const found = new Map();
    for (let g = 0; g < groups; g++) {
      if (sum.weight[g] <= 0) continue;
      const key = grouping.keyOf(g);
      let row = found.get(key);
      if (!row) {
        row = { key, weight: 0, stall: 0, levels: new Float64Array(raw.levels.length + 2), inside: [0, 0], all: [0, 0] };
        found.set(key, row);
      }
      row.weight += sum.weight[g];
      row.stall += sum.stall[g];
      row.levels[by.level.keyOf(g)] += sum.stall[g];
      for (const end of [0, 1]) {
        row.inside[end] += sum.inside[end][g];
        row.all[end] += sum.all[end][g];
      }
    }
    return [...found.values()].map((row) => {
      const it = grouping.keys[row.key];
      return Object.assign(row, { it, figures: sum.ends ? ofSpan(row, it, sum.ends) : it.figures });
    });
  };

  // Executions and latencies of a row in the selected span: whole periods, and of the first and
  // the last the share of the row's CPU time there that is inside.
  const ofSpan = (row, it, ends) => {
    const out = [...it.figures];
    for (const at of [2, 3, 4, 5, 9, 10, 11, 12]) out[at] = null;
    let latency = 0;
    let timed = 0;
    const add = (at, value, share) => {
      if (value !== null) out[at] = (out[at] || 0) + value * share;
    };
    const addEnds = (at, value, share) => {
      if (value === null) return;
      const [low, high] = out[at] || [0, 0];
      out[at] = [low + value[0] * share, high + value[1] * share];
    };
    for (const [period, loads, stores, ns, misses, loadEnds, storeEnds, missEnds] of it.periods || []) {
      if (period < ends[0] || period > ends[1]) continue;
      const end = ends.indexOf(period);
      const share = end < 0 ? 1 : row.all[end] > 0 ? row.inside[end] / row.all[end] : 0;
      if (share === 0) continue;
      [[2, loads], [3, stores], [11, misses]].forEach(([at, value]) => add(at, value, share));
      [[9, loadEnds], [10, storeEnds], [12, missEnds]].forEach(([at, value]) => addEnds(at, value, share));
      if (ns !== null) {
        const weight = ((loads || 0) + (stores || 0) || 1) * share;
        latency += ns * weight;
        timed += weight;
      }
    }
    if (timed > 0) out[4] = latency / timed;
    return out;
  };

  // Time of a lane in each span, whatever span is selected.
  const lane = (thread) => {
    const weight = new Float64Array(raw.bins);
    const stall = new Float64Array(raw.bins);
    for (let g = 0; g < groups; g++) {
      if ((thread !== null && of.thread[g] !== thread) || !passes(g)) continue;
      for (let at = of.first[g]; at < of.last[g]; at++) {
        weight[bin[at]] += cells.weight[at] * cells.unit_s;
        stall[bin[at]] += cells.stall[at] * cells.unit_s;
      }
    }
    return { weight, stall };
  };

  // Figures as the rest of the page writes them.
  const number = (value) => {
    const size = Math.abs(value);
    return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
  };
  const percent = (share) => {
    const value = share * 100;
    if (!Number.isFinite(value)) return "n/a";
    if (Math.abs(value) < 0.05) return "0 %";
    return value >= 9.95 ? `${value.toFixed(0)} %` : `${value.toFixed(1)} %`;
  };
  const seconds = (value) => {
    const size = Math.abs(value);
    if (size >= 1 || size === 0) return `${number(value)} s`;
    if (size >= 1e-3) return `${number(value * 1e3)} ms`;
    return size >= 1e-6 ? `${number(value * 1e6)} µs` : `${number(value * 1e9)} ns`;
  };
  // A number of executions, with its interval where that is wider than a tenth to a side.
  const counted = (count, ends) => {
    if (count === null || count === undefined) return "";
    const wide = ends && (ends[0] < 0.9 * count || ends[1] > 1.1 * count);
    return wide ? `${short(count)} [${short(ends[0])}, ${short(ends[1])}]` : short(count);
  };
  const short = (value) => {
    for (const [least, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"]]) if (value >= least) return number(value / least) + unit;
    return value >= 1e4 ? `${number(value / 1e3)} k` : value.toFixed(0);
  };
  const color = (level) => (level < raw.levels.length ? `lv${raw.levels[level][1]}` : "lv9");

  const make = (tag, options = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (key === "class") node.className = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  // A bar of the stalled share by level, on the scale of `whole`.
  const bar = (levels, whole) => {
    const node = make("span", { class: "levelbar", "aria-hidden": "true" });
    levels.forEach((stall, level) => {
      if (stall <= 0 || whole <= 0 || level >= raw.levels.length) return;
      const part = make("i", { class: color(level) });
      part.style.width = `${Math.min(100, (stall / whole) * 100).toFixed(2)}%`;
      node.append(part);
    });
    return node;
  };

  const views = [];
  const whole = sums();
  let last = whole;
  const update = (changed) => {
    last = filtered() ? sums() : whole;
    for (const view of views) view(last, changed);
    address();
  };

  // The selection in the page's address, so that it can be kept and sent.
  const span_s = () => (state.span ? state.span.map((edge) => raw.from_s + (edge / raw.bins) * raw.duration_s) : null);
  const address = () => {
    const words = [];
    if (state.span) words.push(`t=${span_s().map((edge) => edge.toPrecision(6)).join("-")}`);
    for (const kind of kinds) if (kind in state.filter) words.push(`${kind}=${state.filter[kind]}`);
    if (state.by !== "line") words.push(`by=${state.by}`);
    if (state.sort !== "stall" || !state.down) words.push(`sort=${state.sort}${state.down ? "" : "-up"}`);
    if (state.flame !== "code") words.push(`flame=${state.flame}`);
    if (state.weight !== "stall") words.push(`weight=${state.weight}`);
    const hash = words.length ? `#${words.join("&")}` : "";
    const kept = location.hash.includes("=") ? location.hash : "";
    // Links to parts of the page keep theirs until something is selected.
    if (hash !== kept && (hash || kept)) history.replaceState(null, "", hash || location.pathname + location.search);
  };
  const restore = () => {
    if (!location.hash.includes("=")) return false;
    state.span = null;
    state.filter = {};
    for (const word of location.hash.slice(1).split("&")) {
      const [key, value = ""] = word.split("=");
      if (key === "t") {
        const edges = value.split("-").map((edge) => Math.round(((Number(edge) - raw.from_s) / raw.duration_s) * raw.bins));
        if (edges.length === 2 && edges[0] >= 0 && edges[1] > edges[0]) state.span = [edges[0], Math.min(raw.bins, edges[1])];
      } else if (kinds.includes(key) && /^\d+$/.test(value)) state.filter[key] = Number(value);
      else if (key === "by" && kinds.includes(value)) state.by = value;
      else if (key === "sort") [state.sort, state.down] = [value.replace(/-up$/, ""), !value.endsWith("-up")];
      else if (key === "flame" && ["code", "object", "allocation"].includes(value)) state.flame = value;
      else if (key === "weight" && ["stall", "time"].includes(value)) state.weight = value;
    }
    for (const kind of kinds) if (kind in state.filter && state.filter[kind] >= by[kind].keys.length) delete state.filter[kind];
    return true;
  };
  // A filter of one grouping: set, or taken away when it is set already.
  const toggle = (kind, key) => {
    if (state.filter[kind] === key) delete state.filter[kind];
    else state.filter[kind] = key;
    update("filter");
  };
  return { raw, of, by, kinds, state, sums, rows, lane, views, update, restore, toggle, filtered, whole, number, percent, seconds, short, counted, color, make, bar, name, base, plain, groups, frames, stacks, span_s, current: () => last };
})();
