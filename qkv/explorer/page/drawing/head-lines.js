// The lines of the head view: which weights are visible, and how they are drawn on a canvas or in an SVG.

import { headColor } from "./colors.js";
import { createSvg } from "../widgets/dom.js";
import { FULL_WEIGHT } from "../data/weights.js";

const LINE_TILE = 128;
const OPACITY_LEVELS = 32;
/** A line with a smaller weight would be invisible. */
const MIN_LINE_WEIGHT = 1 / 64;
/** While the page scrolls only the stronger lines are drawn: thousands of curves take longer than a frame without a GPU. */
export const SCROLLING_LINE_WEIGHT = 0.12;

/** The specifications of the tiles that cover rows × columns, each given as [first, last). */
export function tilesOf(attention, heads, rows, columns) {
  const [queryCount, keyCount] = attention.shape;
  const tiles = [];
  for (let row = Math.floor(rows[0] / LINE_TILE) * LINE_TILE; row < Math.min(rows[1], queryCount); row += LINE_TILE) {
    for (let column = Math.floor(columns[0] / LINE_TILE) * LINE_TILE; column < Math.min(columns[1], keyCount); column += LINE_TILE) {
      tiles.push({ path: attention.path, heads, rows: [row, Math.min(row + LINE_TILE, queryCount)], columns: [column, Math.min(column + LINE_TILE, keyCount)] });
    }
  }
  return tiles;
}

/** Call `visit(head, row, column, weight)` for every weight of a block that makes a visible line. */
export function eachLine({ spec, block, heads, rows, accepts }, visit) {
  const [, rowCount, columnCount] = block.shape;
  const least = MIN_LINE_WEIGHT * FULL_WEIGHT;
  const first = Math.max(rows[0], spec.rows[0]);
  const last = Math.min(rows[1], spec.rows[1]);
  for (const head of heads) {
    for (let row = first; row < last; row++) {
      const start = (head * rowCount + row - spec.rows[0]) * columnCount;
      for (let i = 0; i < columnCount; i++) {
        const value = block.data[start + i];
        if (value < least || !accepts(row, i + spec.columns[0])) continue;
        visit(head, row, i + spec.columns[0], value / FULL_WEIGHT);
      }
    }
  }
}

/** Where a line starts and ends: each head has its own lane within the row's height. */
export function createGeometry({ heads, rowHeight, offset, left, right }) {
  const lane = new Map(heads.map((head, i) => [head, (i - (heads.length - 1) / 2) / heads.length * rowHeight * 0.6]));
  const middle = (left + right) / 2;
  const y = (index, head) => (index + 0.5) * rowHeight + lane.get(head) - offset;
  return {
    trace(path, head, row, column) {
      const [from, to] = [y(row, head), y(column, head)];
      path.moveTo(left, from);
      path.bezierCurveTo(middle, from, middle, to, right, to);
    },
    text(head, row, column) {
      const [from, to] = [y(row, head).toFixed(1), y(column, head).toFixed(1)];
      return `M${left} ${from}C${middle} ${from} ${middle} ${to} ${right} ${to}`;
    },
  };
}

/** Draw lines, grouped by head and opacity: a stroke for every line would be too slow. */
export function drawLines(context, lines, geometry, width) {
  const groups = new Map();
  for (const [head, row, column, weight] of lines) {
    const key = head * (OPACITY_LEVELS + 1) + Math.ceil(weight * OPACITY_LEVELS);
    if (!groups.has(key)) groups.set(key, new Path2D());
    geometry.trace(groups.get(key), head, row, column);
  }
  context.lineWidth = width;
  for (const [key, path] of groups) {
    context.globalAlpha = (key % (OPACITY_LEVELS + 1)) / OPACITY_LEVELS;
    context.strokeStyle = headColor(Math.floor(key / (OPACITY_LEVELS + 1)));
    context.stroke(path);
  }
  context.globalAlpha = 1;
}

/** The same lines as SVG paths with their exact weights. */
export function svgLines(lines, geometry, width) {
  return lines.map(([head, row, column, weight]) => createSvg("path", {
    d: geometry.text(head, row, column), fill: "none", stroke: headColor(head), "stroke-width": width, "stroke-opacity": weight.toFixed(4),
  }));
}
