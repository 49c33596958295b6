// Lines over time, drawn by uPlot (assets/uplot-1.6.32, MIT licence).

import { formatNumber, isNumber, make } from "./dom.js";

const shown = new Set(); // the plots that exist, to draw them again in other colours

// A colour is a pair for light and dark; an element says which one applies now.
function readColour(name) {
  document.body.style.setProperty("outline-color", `var(${name})`);
  return getComputedStyle(document.body).outlineColor;
}

export function recolour() {
  for (const plot of shown) plot.redraw();
}

function draw(target, height, lines, options) {
  const series = lines.map((_, number) => ({
    stroke: () => readColour(number ? "--second" : "--mark"),
    width: 1.6,
    dash: number ? [5, 3] : undefined,
    points: { show: false },
  }));
  const plot = new window.uPlot(
    { width: target.clientWidth || 120, height, legend: { show: false }, ...options, series: [{}, ...series] },
    [[], ...lines.map(() => [])],
    target,
  );
  shown.add(plot);
  new ResizeObserver(() => {
    if (!target.isConnected) shown.delete(plot);
    else if (target.clientWidth && target.clientWidth !== plot.width) plot.setSize({ width: target.clientWidth, height });
  }).observe(target);
  return plot;
}

const clean = (values) => values.map((value) => (isNumber(value) ? value : null));

const WHOLE = [1, 2, 5].flatMap((step) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((power) => step * 10 ** power)).sort((one, other) => one - other); // requests between two marks

// Lines without axes. update(series) takes one array of numbers for each line.
export function makeSparkline(height = 34, lines = 1, { least = 0, most = null } = {}) {
  const element = make("div", { class: "spark", "aria-hidden": "true" });
  let plot = null;
  const range = (_, low, high) => [least ?? low, most ?? Math.max(high ?? 0, 1e-9) * 1.05];
  return {
    element,
    update(series) {
      plot ??= draw(element, height, series.slice(0, lines), {
        cursor: { show: false },
        axes: [{ show: false }, { show: false }],
        padding: [2, 0, 2, 0],
        scales: { x: { time: false }, y: { range } },
      });
      shown.add(plot);
      plot.setData([series[0].map((_, index) => index), ...series.map(clean)]);
    },
  };
}

// A chart of a signal: `lines` are [{ key, label }], the adapted model first. update(points) draws points with `seq`.
export function makeChart(title, lines, { least = null, most = null, format = formatNumber } = {}) {
  const keys = lines.map((_, number) => make("span", number ? { class: "second" } : {}));
  const target = make("div", { class: "plot", role: "img" });
  const element = make("div", { class: "chart" }, make("h3", {}, title), make("div", { class: "keys" }, ...keys), target);
  let plot = null;
  let points = [];

  function tell(index) {
    lines.forEach(({ key, label }, number) => {
      keys[number].textContent = `${label} ${format(points[index]?.[key])}`;
    });
  }
  function range(_, low, high) {
    const [bottom, top] = [least ?? low ?? 0, most ?? high ?? 1];
    return top - bottom < 1e-9 ? [least ?? bottom - 1e-3, top + 1e-3] : [bottom, top];
  }
  const axis = { stroke: () => readColour("--soft"), grid: { stroke: () => readColour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };

  return {
    element,
    update(given) {
      points = given;
      const series = lines.map(({ key }) => clean(points.map((point) => point[key])));
      element.hidden = !series.flat().some(isNumber);
      if (element.hidden) return;
      plot ??= draw(target, 132, lines, {
        axes: [{ ...axis, size: 24, incrs: WHOLE }, { ...axis, size: 48, values: (_, values) => values.map((value) => format(value, 2)) }],
        scales: { x: { time: false }, y: { range } },
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        hooks: { setCursor: [({ cursor }) => tell(cursor.idx ?? points.length - 1)] },
      });
      plot.setData([points.map((point) => point.seq), ...series]);
      tell(points.length - 1);
      target.setAttribute("aria-label", `The last ${points.length} requests: ${keys.map((key) => key.textContent).join(", ")}`);
    },
  };
}
