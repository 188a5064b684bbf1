// A heat map on a canvas with pan, zoom, a cell cursor and token labels along the axes.

import { clamp, create, observeSize, prepareCanvas, remPixels } from "../widgets/dom.js";
import { createPainter } from "../widgets/frames.js";
import { themeColor } from "./colors.js";
import { roundZoom } from "../state.js";
import { tokenLabel } from "../widgets/token-text.js";

const MAX_CELL = 5; // rem
const MIN_LABEL_SCALE = 9; // pixels per token below which labels would overlap
const ZOOM_STEP = 1.25;

/** Create the canvas. `onCell({row, column} | null, isKept)` follows the cursor, `onView([x, y, scale])` pan and zoom. */
export function createMatrixCanvas({ onCell, onView }) {
  const canvas = create("canvas", { class: "matrix-canvas", role: "img", tabindex: 0 });
  const element = create("div", { class: "matrix" }, canvas);
  const view = { x: 0, y: 0, scale: 0, width: 0, height: 0, left: 0, top: 0 };
  const pointers = new Map();
  let content = null; // {queries, keys, tiles, label, outlines}
  let cell = null;
  let isKept = false;
  let isFitted = true;
  let dragStart = null;
  const requestDraw = createPainter(draw);
  const stopSize = observeSize(element, () => { layOut(); requestDraw(); });

  function layOut() {
    if (!content) return;
    const rem = remPixels();
    const [width, height] = [element.clientWidth, element.clientHeight];
    const margin = Math.min(6.5 * rem, width * 0.22);
    Object.assign(view, { left: margin, top: margin, width: Math.max(1, width - margin), height: Math.max(1, height - margin) });
    if (isFitted) fit();
  }

  /** Pixels of the largest cell. */
  function maxScale() {
    return MAX_CELL * remPixels();
  }

  function fitScale() {
    return Math.min(view.width / content.keys.length, view.height / content.queries.length, maxScale());
  }

  function fit() {
    Object.assign(view, { x: 0, y: 0, scale: fitScale() });
    isFitted = true;
  }

  /** Keep the matrix on the screen, at a place that a link has exactly. */
  function limit() {
    view.scale = clamp(view.scale, Math.min(fitScale(), 1), maxScale());
    view.x = clamp(view.x, 0, Math.max(0, content.keys.length - view.width / view.scale));
    view.y = clamp(view.y, 0, Math.max(0, content.queries.length - view.height / view.scale));
    for (const name of ["x", "y", "scale"]) view[name] = roundZoom(view[name]);
  }

  function moved() {
    isFitted = false;
    limit();
    onView([view.x, view.y, view.scale]);
    requestDraw();
  }

  function zoomAt(factor, x, y) {
    const [column, row] = [view.x + x / view.scale, view.y + y / view.scale];
    view.scale = clamp(view.scale * factor, Math.min(fitScale(), 1), maxScale());
    Object.assign(view, { x: column - x / view.scale, y: row - y / view.scale });
    moved();
  }

  function position(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left - view.left, event.clientY - box.top - view.top];
  }

  function cellAt([x, y]) {
    if (x < 0 || y < 0) return null;
    const [column, row] = [Math.floor(view.x + x / view.scale), Math.floor(view.y + y / view.scale)];
    return column < content.keys.length && row < content.queries.length ? { row, column } : null;
  }

  function setCell(newCell, keep = false) {
    cell = newCell;
    isKept = keep;
    onCell(cell, keep);
    requestDraw();
  }

  /** Bring the cursor's cell into the visible part. */
  function reveal() {
    if (isFitted) return; // every cell is visible
    const [columns, rows] = [view.width / view.scale, view.height / view.scale];
    view.x = clamp(view.x, cell.column + 1 - columns, cell.column);
    view.y = clamp(view.y, cell.row + 1 - rows, cell.row);
    limit();
    onView([view.x, view.y, view.scale]);
  }

  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoomAt(Math.exp(-clamp(event.deltaY, -200, 200) * 0.004), ...position(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, position(event));
    dragStart = { place: position(event), hasMoved: false };
  });
  canvas.addEventListener("pointermove", event => {
    const place = position(event);
    if (!pointers.has(event.pointerId)) {
      if (!isKept) setCell(cellAt(place));
      return;
    }
    const before = pointers.get(event.pointerId);
    if (pointers.size === 2) pinch(event.pointerId, place);
    else drag(before, place);
    pointers.set(event.pointerId, place);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, event => {
      pointers.delete(event.pointerId);
      if (name === "pointerup" && dragStart && !dragStart.hasMoved) toggleCell(cellAt(position(event)));
      dragStart = null;
    });
  }
  canvas.addEventListener("pointerleave", () => { if (!isKept && pointers.size === 0) setCell(null); });
  canvas.addEventListener("dblclick", event => zoomAt(2, ...position(event)));
  canvas.addEventListener("keydown", handleKey);

  function toggleCell(next) {
    const isSame = isKept && next && cell.row === next.row && cell.column === next.column;
    setCell(isSame ? null : next, !isSame && next !== null);
  }

  function drag(before, place) {
    if (Math.hypot(place[0] - dragStart.place[0], place[1] - dragStart.place[1]) < 4 && !dragStart.hasMoved) return;
    dragStart.hasMoved = true;
    view.x -= (place[0] - before[0]) / view.scale;
    view.y -= (place[1] - before[1]) / view.scale;
    moved();
  }

  function pinch(id, place) {
    const [other] = [...pointers].filter(([key]) => key !== id).map(([, value]) => value);
    const before = pointers.get(id);
    const length = point => Math.max(10, Math.hypot(point[0] - other[0], point[1] - other[1]));
    dragStart = { place, hasMoved: true };
    zoomAt(length(place) / length(before), (place[0] + other[0]) / 2, (place[1] + other[1]) / 2);
  }

  function handleKey(event) {
    const step = event.shiftKey ? 10 : 1;
    const move = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-step, 0], ArrowDown: [step, 0] }[event.key];
    if (move) {
      const start = cell ?? { row: Math.ceil(view.y), column: Math.ceil(view.x) };
      const [rows, columns] = cell ? move : [0, 0];
      cell = { row: clamp(start.row + rows, 0, content.queries.length - 1), column: clamp(start.column + columns, 0, content.keys.length - 1) };
      reveal();
      setCell(cell, true);
    } else if (event.key === "+" || event.key === "=") zoomAt(ZOOM_STEP, view.width / 2, view.height / 2);
    else if (event.key === "-") zoomAt(1 / ZOOM_STEP, view.width / 2, view.height / 2);
    else if (event.key === "0") reset();
    else if (event.key === "Escape") setCell(null);
    else return;
    event.preventDefault();
  }

  function reset() {
    fit();
    onView(null);
    requestDraw();
  }

  /** Show the part at `zoom`, [x, y, scale], or all of the matrix if it is null, without reporting it. */
  function setView(zoom) {
    isFitted = !zoom;
    layOut();
    if (zoom) {
      Object.assign(view, { x: zoom[0], y: zoom[1], scale: zoom[2] });
      limit();
    }
    requestDraw();
  }

  function draw() {
    if (!content || view.width <= 1) return;
    const context = prepareCanvas(canvas, element.clientWidth, element.clientHeight);
    context.save();
    context.beginPath();
    context.rect(view.left, view.top, view.width, view.height);
    context.clip();
    context.translate(view.left, view.top);
    content.tiles.draw(context, view);
    if (cell) drawCursor(context);
    context.restore();
    drawLabels(context);
  }

  function drawCursor(context) {
    const { scale } = view;
    const [x, y, size] = [(cell.column - view.x) * scale, (cell.row - view.y) * scale, Math.max(scale, 3)];
    context.strokeStyle = themeColor("--ink");
    context.globalAlpha = 0.35;
    context.strokeRect(-2, y, (content.keys.length - view.x) * scale + 2, size);
    context.strokeRect(x, -2, size, (content.queries.length - view.y) * scale + 2);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeRect(x, y, size, size);
    context.lineWidth = 1;
  }

  /** Labels of every token where there is room, else of every n-th position, and always of the cursor's row and column. */
  function drawLabels(context) {
    const size = clamp(view.scale * 0.8, 0.75 * remPixels(), remPixels());
    context.textBaseline = "middle";
    context.font = `${size}px ${getComputedStyle(canvas).fontFamily}`;
    labelAxis(context, { tokens: content.queries, start: view.y, room: view.height, size, special: cell?.row, place: y => [view.left - 6, view.top + y, 0] });
    labelAxis(context, { tokens: content.keys, start: view.x, room: view.width, size, special: cell?.column, place: x => [view.left + x, view.top - 6, -Math.PI / 2] });
  }

  function labelAxis(context, { tokens, start, room, size, special, place }) {
    const isClose = view.scale >= MIN_LABEL_SCALE;
    const every = isClose ? Math.max(1, Math.ceil(size * 1.05 / view.scale)) : niceStep(5 * size / view.scale);
    const last = Math.min(tokens.length, Math.ceil(start + room / view.scale));
    const ends = [];
    for (let index = Math.ceil(start / every) * every; index < last; index += every) ends.push(index);
    const cursor = special === undefined || special < Math.floor(start) || special >= last ? null : special;
    for (const index of ends) {
      if (cursor !== null && Math.abs(index - cursor) * view.scale < size * 1.1) continue;
      drawLabel(context, isClose ? tokenLabel(tokens[index], 16) : String(index), place((index + 0.5 - start) * view.scale), "--faint");
    }
    if (cursor !== null) drawLabel(context, tokenLabel(tokens[cursor], 16), place((cursor + 0.5 - start) * view.scale), "--ink");
  }

  function drawLabel(context, text, [x, y, angle], color) {
    context.save();
    context.translate(x, y);
    context.rotate(angle);
    context.fillStyle = themeColor(color);
    context.textAlign = angle === 0 ? "right" : "left";
    context.fillText(text, 0, 0, view.left - 8);
    context.restore();
  }

  return {
    element,
    /** Show a matrix; `zoom` is [x, y, scale] or null for all of it. */
    show(newContent, zoom) {
      content = newContent;
      canvas.setAttribute("aria-label", `${content.label}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.`);
      setView(zoom);
    },
    setView,
    /** Put the cursor on a cell without reporting it. */
    setCursor(newCell, keep) {
      cell = newCell;
      isKept = keep;
      requestDraw();
    },
    zoom: factor => zoomAt(factor, view.width / 2, view.height / 2),
    reset,
    redraw: requestDraw,
    visible: () => ({ ...view }),
    close: stopSize,
  };
}

/** A round step of positions that is at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map(factor => factor * power).find(step => step >= least) ?? 10 * power;
}
