// Lines over time as SVG: sparklines for the tiles, charts with two lines for a stream.

import { formatNumber, isNumber, make, makeSvg } from "./dom.js";

const WIDE = 300;

// The points of one line as parts of a path; a missing value leaves a gap.
function drawPath(values, place) {
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (!isNumber(value)) open = false;
    else {
      const [x, y] = place(index, value);
      path += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      if (!open && !isNumber(values[index + 1])) path += `l0.01 0`; // a single point is a dot
      open = true;
    }
  });
  return path;
}

export function makeSparkline(tall = 34, lines = 1) {
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${tall}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const area = makeSvg("path", { class: "area" });
  const paths = ["first", "second"].slice(0, lines).map((kind) => makeSvg("path", { class: `line ${kind}` }));
  svg.append(area, ...paths);
  function update(series, points) {
    const all = series.flat().filter(isNumber);
    const top = Math.max(...all, 1e-9) * 1.08;
    const place = (index, value) => [((index + points - series[0].length) / (points - 1)) * WIDE, tall - 1 - (value / top) * (tall - 3)];
    paths.forEach((path, number) => path.setAttribute("d", drawPath(series[number], place)));
    const first = series[0].findIndex(isNumber);
    const line = drawPath(series[0], place);
    const gaps = (line.match(/M/g) ?? []).length > 1;
    const [left] = first < 0 ? [0] : place(first, 0);
    area.setAttribute("d", line && !gaps ? `${line}L${WIDE} ${tall}L${left.toFixed(1)} ${tall}Z` : "");
  }
  return { svg, update };
}

// A chart of a signal: `lines` are [{ key, label }], the adapted model first. update(points) draws points with `seq`.
export function makeChart(title, lines, { least = null, most = null, format = formatNumber } = {}) {
  const tall = 92;
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${tall}`, preserveAspectRatio: "none", role: "img" });
  const rules = [0, 0.5, 1].map((part) => makeSvg("line", { class: "rule", x1: 0, x2: WIDE, y1: part * tall, y2: part * tall }));
  const cross = makeSvg("line", { class: "cross", y1: 0, y2: tall, visibility: "hidden" });
  const paths = lines.map((_, number) => makeSvg("path", { class: `line ${number ? "second" : "first"}` }));
  svg.append(...rules, ...paths, cross);
  const keys = lines.map((_, number) => make("span", number ? { class: "second" } : {}));
  const low = make("span", { class: "low" });
  const high = make("span", { class: "high" });
  const plot = make("div", { class: "plot" }, svg, low, high);
  const element = make("div", { class: "chart" }, make("h3", { text: title }), make("div", { class: "keys" }, ...keys), plot);
  let shown = [];

  const place = (index) => (shown.length < 2 ? WIDE : (index / (shown.length - 1)) * WIDE);

  function tell(index) {
    const point = shown[index];
    lines.forEach(({ key, label }, number) => {
      keys[number].textContent = `${label} ${format(point?.[key])}`;
    });
  }

  function update(points) {
    shown = points;
    const values = lines.flatMap(({ key }) => points.map((point) => point[key])).filter(isNumber);
    element.hidden = values.length === 0;
    if (!values.length) return;
    let bottom = least ?? Math.min(...values);
    let top = most ?? Math.max(...values);
    if (top - bottom < 1e-9) [bottom, top] = [least ?? bottom - Math.max(1e-3, Math.abs(bottom) * 0.1), top + Math.max(1e-3, Math.abs(top) * 0.1)];
    const scale = (index, value) => [place(index), tall - ((value - bottom) / (top - bottom)) * tall];
    lines.forEach(({ key }, number) => paths[number].setAttribute("d", drawPath(points.map((point) => point[key]), scale)));
    low.textContent = format(bottom, 2);
    high.textContent = format(top, 2);
    svg.setAttribute("aria-label", `${title}, the last ${points.length} requests`);
    tell(points.length - 1);
  }

  svg.addEventListener("pointermove", (event) => {
    if (!shown.length) return;
    const box = svg.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const index = Math.round(part * (shown.length - 1));
    cross.setAttribute("x1", place(index));
    cross.setAttribute("x2", place(index));
    cross.setAttribute("visibility", "visible");
    tell(index);
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    if (shown.length) tell(shown.length - 1);
  });
  return { element, update };
}
