// A line chart as SVG: one line for each head, with ticks, axis labels and the heads' numbers at the lines' ends.

import { createSvg, remPixels } from "../widgets/dom.js";
import { headColor, themeColor } from "./colors.js";
import { svgText } from "./svg.js";
import { formatNumber } from "../widgets/token-text.js";

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) ticks.push(tick);
  return ticks;
}

/** Draw `lines` (one array of numbers for each head) over `xs`. */
export function createLineChart({ xs, lines, xLabel, yLabel, label, width }) {
  const rem = remPixels();
  const height = Math.min(width * 0.5, 24 * rem);
  const [left, right, top, bottom] = [4 * rem, 3 * rem, 1 * rem, 3.2 * rem];
  const values = lines.flat();
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const x = value => left + (value - xs[0]) / (xs.at(-1) - xs[0] || 1) * (width - left - right);
  const y = value => top + (high - value) / (high - low || 1) * (height - top - bottom);
  const small = { "font-size": 0.8125 * rem, fill: themeColor("--faint") };
  const grid = [
    ...niceTicks(low, high, 5).flatMap(tick => [
      createSvg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: themeColor("--line") }),
      svgText(formatNumber(tick, Math.abs(high - low) < 2 ? 2 : 1), { ...small, x: left - 8, y: y(tick) + 4, "text-anchor": "end" })]),
    ...niceTicks(xs[0], xs.at(-1), 8).map(tick => svgText(formatNumber(tick, 0), { ...small, x: x(tick), y: height - bottom + 1.2 * rem, "text-anchor": "middle" })),
    svgText(xLabel, { ...small, x: (left + width - right) / 2, y: height - 0.4 * rem, "text-anchor": "middle" }),
    svgText(yLabel, { ...small, transform: `translate(${rem} ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }),
  ];
  const paths = lines.map((line, head) => createSvg("path", {
    d: line.map((value, i) => `${i ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(value).toFixed(1)}`).join(""), fill: "none", stroke: headColor(head), "stroke-width": 2, "stroke-linejoin": "round",
  }, createSvg("title", { text: `head ${head}` })));
  return createSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...grid, ...paths, ...endLabels(lines, y, width - right + 6, rem));
}

/** Numbers of the heads at the right end of their lines, moved apart where they would overlap. */
function endLabels(lines, y, x, rem) {
  const ends = lines.map((line, head) => ({ head, y: y(line.at(-1)) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i > 0) end.y = Math.max(end.y, ends[i - 1].y + 0.8 * rem); });
  return ends.map(end => svgText(String(end.head), { x, y: end.y + 4, "font-size": 0.75 * rem, "font-weight": 600, fill: headColor(end.head) }));
}
