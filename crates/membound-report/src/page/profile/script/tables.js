// The table that regroups and sorts. Shares are of the CPU time that is selected, executions
// and latencies of the selected span; intervals of shares are of the whole run, and stand only
// where a row is whole.
((m) => {
  "use strict";
  const { state, make } = m;
  const holder = document.getElementById("table");
  if (!holder) return;
  const FEW = 25;
  let all = false;
  let wanted = "";
  const search = document.getElementById("find");

  const columns = [
    { id: "stall", title: "stalled", value: (row) => row.stall, text: (row, sum) => m.percent(row.stall / sum.total) },
    { id: "bar", title: "", cell: (row, sum, most) => m.bar(row.levels, most) },
    { id: "interval", title: "95 %", whole: true, text: (row) => (row.it.figures[1] > 0 ? `${m.percent(row.it.figures[0])} – ${m.percent(row.it.figures[1])}` : "") },
    { id: "time", title: "CPU time", value: (row) => row.weight, text: (row, sum) => m.percent(row.weight / sum.total) },
    { id: "seconds", title: "", text: (row) => m.seconds(row.weight) },
    { id: "latency", title: "latency", value: (row) => row.figures[4] || 0, text: (row) => (row.figures[4] === null ? "" : `${m.number(row.figures[4])} ns`) },
    { id: "loads", title: "loads", value: (row) => row.figures[2] || 0, text: (row) => m.counted(row.figures[2], row.figures[9]) },
    { id: "stores", title: "stores", value: (row) => row.figures[3] || 0, text: (row) => m.counted(row.figures[3], row.figures[10]) },
    { id: "misses", title: "LLC misses", value: (row) => row.figures[11] || 0, text: (row) => m.counted(row.figures[11], row.figures[12]) },
    { id: "name", title: "", value: (row) => row.it.name },
  ];
  const order = (rows) => {
    const column = columns.find((it) => it.id === state.sort && it.value) || columns[0];
    const sign = state.down ? -1 : 1;
    return rows.sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return (x < y ? -sign : x > y ? sign : 0) || b.stall - a.stall || b.weight - a.weight;
    });
  };
  const head = (shown) => {
    const row = make("tr");
    for (const column of shown) {
      const title = column.id === "name" ? m.by[state.by].title : column.title;
      const cell = make("th", { scope: "col" });
      if (column.value) {
        const button = make("button", { type: "button", class: "sort", "data-sort": column.id }, title);
        const sorted = column.id === state.sort;
        cell.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
        button.addEventListener("click", () => {
          state.down = state.sort === column.id ? !state.down : column.id !== "name";
          state.sort = column.id;
          m.update("table");
        });
        cell.append(button);
      } else cell.append(title);
      row.append(cell);
    }
    return make("thead", {}, row);
  };
  const press = (row) => {
    m.toggle(state.by, row.key);
    if (state.by === "object") m.openObject(row.key);
    if (row.it.frame !== undefined) m.openCode(row.it.frame);
  };
  const body = (rows, shown, sum) => {
    const most = rows.reduce((most, row) => Math.max(most, row.stall), 0);
    const out = make("tbody");
    for (const row of rows) {
      const line = make("tr", { class: state.filter[state.by] === row.key ? "chosen" : "" });
      for (const column of shown) {
        if (column.id === "name") {
          const button = make("button", { type: "button", class: "pick", title: row.it.name, "data-key": row.key }, row.it.name);
          button.addEventListener("click", () => press(row));
          const cell = make("th", { scope: "row" }, button);
          if (row.it.beside) cell.append(make("small", { title: row.it.beside }, ` ${m.plain(row.it.beside)}`));
          if (row.it.mark) cell.append(make("span", { class: "differs" }, ` ${row.it.mark}`));
          line.append(cell);
        } else if (column.cell) line.append(make("td", {}, column.cell(row, sum, most)));
        else {
          const text = column.text(row, sum);
          const hot = column.id === "stall" && row.it.figures[6] === 1;
          line.append(make("td", hot ? { class: "differs", title: "past a threshold: worth a look" } : {}, text));
        }
      }
      out.append(line);
    }
    return out;
  };

  // What executions and latencies are of.
  const counts = (sum) => {
    const others = Object.keys(state.filter).some((kind) => kind !== state.by);
    const all = others ? ", of all rows, whatever else is selected" : "";
    if (!state.span) return `Latencies, loads, stores and misses are of the whole run${all}; membound report --thread has those of threads.`;
    if (!sum.ends) return `Latencies, loads, stores and misses are of the whole run${all}: it is too short to be divided. membound report --span FROM..TO has those of a span.`;
    return `Latencies, loads, stores and misses are of the selected span${all}. They are known of ${m.raw.periods} equal periods; where the span cuts one, a row has the share of its CPU time. membound report --span FROM..TO has them with no such division.`;
  };

  const draw = (sum) => {
    // A table stays as long as it is filtered by its own kind: the chosen row among others.
    const own = state.by in state.filter ? m.sums(state.by) : sum;
    let rows = order(m.rows(state.by, own));
    if (wanted) rows = rows.filter((row) => `${row.it.name} ${row.it.beside}`.toLowerCase().includes(wanted));
    const filtered = m.filtered();
    // On a narrow screen the name stands first: what is behind it scrolls.
    const narrow = window.matchMedia("(max-width: 960px)").matches;
    const ordered = narrow ? [columns[columns.length - 1], ...columns.slice(0, -1)] : columns;
    const shown = ordered.filter((column) => {
      if (column.whole && filtered) return false;
      if (!column.text) return true;
      return rows.some((row) => column.text(row, own) !== "");
    });
    const some = all ? rows.slice(0, 4000) : rows.slice(0, FEW);
    const table = make("table", { class: narrow ? "run names-first" : "run", "data-by": state.by, "data-rows": rows.length }, head(shown), body(some, shown, own));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `by ${state.by}` }, table);
    const parts = [scroll];
    if (!rows.length) parts.push(make("p", { class: "note" }, "No sample is in the selection."));
    if (rows.length > some.length || all) {
      const more = make("button", { type: "button", class: "more" }, all ? "show fewer" : `show all ${rows.length} rows`);
      more.addEventListener("click", () => { all = !all; m.update("table"); });
      parts.push(more);
    }
    if (filtered) parts.push(make("p", { class: "note" }, `Shares are of the CPU time that is selected. ${counts(own)}`));
    const focused = document.activeElement && holder.contains(document.activeElement) ? document.activeElement.dataset : null;
    holder.replaceChildren(...parts);
    if (focused && focused.key) holder.querySelector(`[data-key="${focused.key}"]`)?.focus({ preventScroll: true });
    if (focused && focused.sort) holder.querySelector(`[data-sort="${focused.sort}"]`)?.focus({ preventScroll: true });
    for (const tab of document.querySelectorAll("#groupings button")) tab.setAttribute("aria-pressed", String(tab.dataset.by === state.by));
  };
  for (const tab of document.querySelectorAll("#groupings button")) {
    tab.addEventListener("click", () => {
      state.by = tab.dataset.by;
      all = false;
      m.update("table");
    });
  }
  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    draw(m.current());
  });
  window.matchMedia("(max-width: 960px)").addEventListener("change", () => draw(m.current()));
  m.views.push((sum, changed) => changed !== "flame" && draw(sum));
})(membound);
