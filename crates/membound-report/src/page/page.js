// Reading of values by pointer, touch and keyboard; switching of curves and of the scheme.
// The charts stand without it. All text is set as text, never as markup.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const tip = document.getElementById("tip");
  const svgNs = document.querySelector("svg").namespaceURI;

  // A chart's points, read once from its markers; their titles become our own tip.
  const charts = new WeakMap();
  const read = (svg) => {
    let chart = charts.get(svg);
    if (chart) return chart;
    const curves = [...svg.querySelectorAll("g.s")].map((group) => {
      const points = [...group.querySelectorAll(".p > *")].map((node) => {
        const title = node.querySelector("title");
        const size = (name) => Number(node.getAttribute(name)) || 0;
        const point = {
          x: size("x") + size("width") / 2,
          y: node.localName === "rect" && !svg.classList.contains("heat") ? size("y") : size("y") + size("height") / 2,
          text: title ? title.textContent : "",
        };
        if (title) title.remove();
        return point;
      });
      return { group, name: group.dataset.n || "", points };
    });
    const cursor = document.createElementNS(svgNs, "circle");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("r", "6");
    chart = { curves, cursor, curve: -1, point: -1 };
    charts.set(svg, chart);
    return chart;
  };
  const shown = (curve) => curve.points.length > 0 && !curve.group.classList.contains("off");

  const hide = () => {
    tip.hidden = true;
    for (const cursor of document.querySelectorAll(".cursor")) cursor.remove();
  };

  const show = (svg, chart) => {
    const curve = chart.curves[chart.curve];
    const point = curve && curve.points[chart.point];
    if (!point) return;
    for (const other of document.querySelectorAll(".cursor")) if (other !== chart.cursor) other.remove();
    chart.cursor.setAttribute("cx", point.x);
    chart.cursor.setAttribute("cy", point.y);
    svg.append(chart.cursor);
    tip.replaceChildren();
    if (curve.name) {
      const name = document.createElement("b");
      name.textContent = curve.name;
      tip.append(name);
    }
    tip.append(point.text);
    tip.hidden = false;
    const matrix = svg.getScreenCTM();
    const left = matrix.a * point.x + matrix.e;
    const top = matrix.d * point.y + matrix.f;
    const box = tip.getBoundingClientRect();
    const wide = root.clientWidth;
    const x = Math.max(6, Math.min(wide - box.width - 6, left + 14 + box.width > wide ? left - 14 - box.width : left + 14));
    const y = top - box.height - 12 < 0 ? top + 14 : top - box.height - 12;
    tip.style.left = `${x + window.scrollX}px`;
    tip.style.top = `${y + window.scrollY}px`;
  };

  const nearest = (svg, event) => {
    const chart = read(svg);
    const matrix = svg.getScreenCTM().inverse();
    const px = matrix.a * event.clientX + matrix.e;
    const py = matrix.d * event.clientY + matrix.f;
    let best = Infinity;
    chart.curves.forEach((curve, c) => {
      if (!shown(curve)) return;
      curve.points.forEach((point, p) => {
        const distance = (point.x - px) ** 2 + (point.y - py) ** 2;
        if (distance < best) {
          best = distance;
          chart.curve = c;
          chart.point = p;
        }
      });
    });
    if (best < Infinity) show(svg, chart);
  };

  // Arrow keys: left and right along a curve, up and down to the next curve that is shown.
  const step = (svg, event) => {
    const chart = read(svg);
    const visible = chart.curves.map((curve, index) => (shown(curve) ? index : -1)).filter((index) => index >= 0);
    if (!visible.length) return;
    let place = Math.max(0, visible.indexOf(chart.curve));
    const keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] };
    if (event.key === "Escape") return hide();
    const move = keys[event.key];
    if (!move) return;
    event.preventDefault();
    const before = chart.curves[visible[place]].points[chart.point];
    place = (place + move[1] + visible.length) % visible.length;
    chart.curve = visible[place];
    const points = chart.curves[chart.curve].points;
    if (move[1] && before) {
      let best = Infinity;
      points.forEach((point, index) => {
        const distance = Math.abs(point.x - before.x);
        if (distance < best) [best, chart.point] = [distance, index];
      });
    } else {
      chart.point = Math.max(0, Math.min(points.length - 1, chart.point + move[0]));
    }
    show(svg, chart);
  };

  for (const svg of document.querySelectorAll("svg.chart")) {
    svg.addEventListener("pointermove", (event) => nearest(svg, event));
    svg.addEventListener("pointerdown", (event) => nearest(svg, event));
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    svg.addEventListener("keydown", (event) => step(svg, event));
    svg.addEventListener("blur", hide);
  }
  document.addEventListener("pointerdown", (event) => event.target.closest("svg.chart") || hide());

  // Legend.
  const set = (figure, key, on) => {
    key.setAttribute("aria-pressed", String(on));
    const group = figure.querySelector(`g.s[data-k="${key.dataset.k}"]`);
    if (group) group.classList.toggle("off", !on);
  };
  for (const figure of document.querySelectorAll("figure")) {
    const keys = [...figure.querySelectorAll(".legend .key")];
    const main = keys.filter((key) => key.getAttribute("aria-pressed") === "true");
    for (const key of keys) {
      key.addEventListener("click", () => {
        hide();
        set(figure, key, key.getAttribute("aria-pressed") !== "true");
      });
    }
    for (const button of figure.querySelectorAll(".set")) {
      button.addEventListener("click", () => {
        for (const key of keys) set(figure, key, button.dataset.set === "all" || main.includes(key));
      });
    }
  }

  // Scheme.
  const scheme = document.getElementById("scheme");
  scheme.hidden = false;
  scheme.addEventListener("click", () => {
    const dark = root.dataset.scheme
      ? root.dataset.scheme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.scheme = dark ? "light" : "dark";
  });
})();
