// Head view: queries left, keys right, a line for every weight, its opacity the weight and its color the head.

import { clamp, create, createSelect, createSvg, observeSize, prepareCanvas, remPixels, setOptions } from "../widgets/dom.js";
import { createPainter } from "../widgets/frames.js";
import { headColor, themeColor } from "../drawing/colors.js";
import { chosenHeads, createHeadSwatches, createLayerPicker } from "../widgets/controls.js";
import { createFocusTable, focusSentence, focusSpec, readFocusWeights } from "../widgets/focus-weights.js";
import { SCROLLING_LINE_WEIGHT, createGeometry, drawLines, eachLine, svgLines, tilesOf } from "../drawing/head-lines.js";
import { createTokenList, measureTokens } from "../widgets/token-list.js";
import { readFocus, writeFocus } from "../state.js";
import { svgText } from "../drawing/svg.js";
import { findAttention, hasSegments, keyTokens, layerName, passesFilter, queryTokens } from "../data/trace.js";
import { formatWeight, tokenLabel } from "../widgets/token-text.js";
import { allHeads } from "../data/weights.js";

const FILTERS = [["all", "all"], ["aa", "A → A"], ["ab", "A → B"], ["ba", "B → A"], ["bb", "B → B"]];
const MAX_SVG_ROWS = 400;
const SCROLL_END = 120; // milliseconds without a scroll event
const HEAD_HINT = "Point at a token, or focus a column and use the arrow keys, to see its weights; a click keeps it.";

export const headView = {
  name: "head",
  label: "Heads",
  help: {
    sentences: ["Every line joins a query token on the left to a key token on the right; the stronger the line, the larger the attention weight, and its color is the head.",
      "The weights of one query in one head add up to 1, so a row of faint lines is a head that spreads its attention over many tokens."],
    equation: "weights = softmax(QKᵀ / √d + bias)",
  },
  isAvailable: () => true,
  open: openHeadView,
};

function openHeadView({ tools, body }, app) {
  const { trace, state, weights } = app;
  const picker = createLayerPicker({ attentions: trace.attentions, onChange: path => app.change({ path }) });
  const filter = createSelect({ label: "Sentences", options: FILTERS, value: state.filter, onChange: value => app.change({ filter: value }) });
  const swatches = createHeadSwatches({ onChange: heads => app.change({ heads }) });
  tools.append(picker.element, filter.element, swatches.element);

  const lists = {
    query: createTokenList({ label: "Queries", side: "query", onHover: index => hover("query", index), onClick: index => toggle("query", index), onPick: index => pick("query", index), onLeave: () => lists.key.element.focus() }),
    key: createTokenList({ label: "Keys", side: "key", onHover: index => hover("key", index), onClick: index => toggle("key", index), onPick: index => pick("key", index), onLeave: () => lists.query.element.focus() }),
  };
  const canvas = create("canvas", { class: "sticky", role: "img" });
  const overview = create("canvas", { class: "sticky overview", "aria-hidden": "true", on: { click: jump } });
  const stage = create("div", { class: "head-stage" }, lists.query.element, canvas, lists.key.element, overview);
  const titles = create("div", { class: "head-titles", "aria-hidden": "true" }, create("span"), create("span"), create("span"));
  const status = create("p", { class: "status", role: "status", text: HEAD_HINT });
  const table = create("section", { class: "details", "aria-label": "Weights of the focused token" });
  body.append(status, create("div", { class: "split" }, create("div", { class: "picture" }, titles, stage), table));

  let attention, queries, keys, heads, hovered = null, rowHeight = 20, shownPath = null, tableOf = null, scrollTimer = null;
  const requestDraw = createPainter(draw);
  const stopSize = observeSize(body, () => { layOut(); requestDraw(); });
  stage.addEventListener("scroll", () => {
    app.remember({ top: Math.round(stage.scrollTop / rowHeight) });
    clearTimeout(scrollTimer);
    scrollTimer = setTimeout(() => { scrollTimer = null; requestDraw(); }, SCROLL_END);
    requestDraw();
  });

  function hover(side, index) {
    hovered = index === null ? null : { side, index };
    requestDraw();
  }

  /** A second click on the token that is kept releases it. */
  function toggle(side, index) {
    pick(side, state.focus === writeFocus({ side, index }) ? null : index);
  }

  function pick(side, index) {
    hovered = null;
    const focus = index === null ? null : { side, index };
    app.change({ focus: writeFocus(focus) });
    if (focus) reveal(index);
  }

  function reveal(index) {
    const top = index * rowHeight;
    if (top < stage.scrollTop) stage.scrollTop = top;
    else if (top + rowHeight > stage.scrollTop + stage.clientHeight) stage.scrollTop = top + rowHeight - stage.clientHeight;
  }

  function jump(event) {
    const fraction = event.offsetY / overview.clientHeight;
    stage.scrollTop = fraction * stage.scrollHeight - stage.clientHeight / 2;
  }

  function layOut() {
    const rem = remPixels();
    const count = Math.max(queries.length, keys.length);
    const top = stage.getBoundingClientRect().top + window.scrollY;
    const room = Math.max(window.innerHeight - top - 2 * rem, window.innerHeight * 0.75);
    const isLong = room / count < 1.25 * rem;
    rowHeight = Math.floor(isLong ? 1.5 * rem : Math.min(room / count, 2.1 * rem));
    const font = getComputedStyle(stage);
    const widest = measureTokens([...queries, ...keys], `${font.fontSize} ${font.fontFamily}`);
    stage.style.setProperty("--row", `${rowHeight}px`);
    stage.style.setProperty("--token-width", `${Math.round(clamp(widest + 3.6 * rem, 6 * rem, stage.clientWidth * 0.34))}px`);
    const height = isLong ? room : count * rowHeight;
    stage.style.height = `${height}px`;
    stage.style.setProperty("--stage-height", `${height}px`);
    stage.classList.toggle("long", isLong);
    titles.style.setProperty("--token-width", stage.style.getPropertyValue("--token-width"));
  }

  function update() {
    attention = findAttention(trace.attentions, state.path);
    picker.update(attention.path);
    const hasPair = hasSegments(trace, attention);
    filter.element.hidden = !hasPair;
    setOptions(filter.select, FILTERS, state.filter);
    heads = chosenHeads(state, attention);
    swatches.update(heads, attention.heads);
    if (shownPath !== attention.path) {
      [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
      lists.query.setTokens(queries);
      lists.key.setTokens(keys);
      titles.children[0].textContent = `queries: ${trace.sequences[attention.queries].label}`;
      titles.children[2].textContent = `keys: ${attention.keys.map(name => trace.sequences[name].label).join(" + ")}`;
      layOut();
      if (shownPath === null) stage.scrollTop = state.top * rowHeight;
      shownPath = attention.path;
    }
    requestDraw();
  }

  function currentFocus() {
    const focus = hovered ?? readFocus(state.focus, attention.shape);
    return focus && focus.index < attention.shape[focus.side === "query" ? 0 : 1] ? focus : null;
  }

  function visibleRows() {
    return [Math.floor(stage.scrollTop / rowHeight), Math.ceil((stage.scrollTop + stage.clientHeight) / rowHeight)];
  }

  function activeFilter() {
    return hasSegments(trace, attention) ? state.filter : "all";
  }

  /** The focused token's weights if they are here; asks for them if not. */
  function loadFocus(focus) {
    const isSmall = attention.shape.every(size => size <= 128);
    const spec = focusSpec(attention, allHeads(attention), focus, isSmall ? tilesOf(attention, allHeads(attention), [0, 1], [0, 1])[0] : null);
    const block = weights.peek(spec);
    if (!block) {
      weights.wantNewest(spec, requestDraw, app.reportError);
      return null;
    }
    return { spec, block, values: readFocusWeights({ spec, block, focus, heads, filter: activeFilter(), queries, keys }) };
  }

  /** The lines whose weights are here; asks for the others. */
  function collectLines(focus, focused, rows) {
    const lines = [];
    const visit = (...line) => lines.push(line);
    if (focus) {
      const accepts = (row, column) => focus.side === "query" || column === focus.index;
      const passes = (row, column) => accepts(row, column) && passesFilter(activeFilter(), queries[row], keys[column]);
      if (focused) eachLine({ ...focused, heads, rows: focus.side === "query" ? [focus.index, focus.index + 1] : [0, queries.length], accepts: passes }, visit);
      return lines;
    }
    const tiles = tilesOf(attention, allHeads(attention), rows, rows);
    weights.want(tiles, requestDraw, app.reportError);
    const filterName = activeFilter();
    const accepts = (row, column) => passesFilter(filterName, queries[row], keys[column]);
    for (const spec of tiles) {
      const block = weights.peek(spec);
      if (block) eachLine({ spec, block, heads, rows, accepts }, visit);
    }
    return lines;
  }

  function draw() {
    const focus = currentFocus();
    const rows = visibleRows();
    const focused = focus ? loadFocus(focus) : null;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const context = prepareCanvas(canvas, width, height);
    const cells = focused ? Math.min(heads.length * 0.5 * remPixels(), width * 0.3) : 0;
    const [left, right] = focus?.side === "key" ? [cells, width] : [0, width - cells];
    const geometry = createGeometry({ heads, rowHeight, offset: stage.scrollTop, left, right });
    const lines = collectLines(focus, focused, rows);
    drawLines(context, scrollTimer === null ? lines : lines.filter(line => line[3] >= SCROLLING_LINE_WEIGHT), geometry, clamp(rowHeight / 14, 1.25, 3));
    if (focused) drawCells(context, focus, focused.values, rows, focus.side === "key" ? 0 : right, cells);
    showTokens(focus, focused, rows);
    showStatus(focus, focused);
    drawOverview(focused);
  }

  /** One small cell for each head beside every token: its opacity is the weight. */
  function drawCells(context, focus, values, [first, last], x, width) {
    const cell = width / Math.max(heads.length, 1);
    for (let index = first; index < Math.min(last, values.others.length); index++) {
      heads.forEach((head, i) => {
        context.globalAlpha = values.of(head, index);
        context.fillStyle = headColor(head);
        context.fillRect(x + i * cell + 0.5, index * rowHeight - stage.scrollTop + 1, cell - 1, rowHeight - 2);
      });
    }
    context.globalAlpha = 1;
  }

  function showTokens(focus, focused, [first, last]) {
    const isDim = (side, index) => focused !== null && side !== focus.side && !focused.values.accepts(index);
    for (const side of ["query", "key"]) {
      const shadeOf = focused && side !== focus.side
        ? index => ({ value: focused.values.means[index], text: focused.values.means[index] >= 0.005 ? formatWeight(focused.values.means[index]) : "", isDim: isDim(side, index) })
        : null;
      lists[side].show(first - 4, last + 4, focus?.side === side ? focus.index : null, shadeOf);
    }
  }

  function showStatus(focus, focused) {
    canvas.setAttribute("aria-label", `Attention weights of ${layerName(attention)} as lines from ${queries.length} queries to ${keys.length} keys, ${heads.length} of ${attention.heads} heads shown`);
    if (focus && !focused) return;
    const key = focus ? [attention.path, focus.side, focus.index, heads, activeFilter()].join() : "";
    if (key === tableOf) return;
    tableOf = key;
    if (!focus) {
      status.textContent = HEAD_HINT;
      table.replaceChildren(create("p", { class: "faint", text: "No token is focused." }));
      return;
    }
    const token = (focus.side === "query" ? queries : keys)[focus.index];
    const details = { focus, token, weights: focused.values, heads, headCount: attention.heads };
    status.textContent = focusSentence(details);
    table.replaceChildren(createFocusTable({ ...details, onPick: index => pick(focus.side === "query" ? "key" : "query", index) }));
  }

  function drawOverview(focused) {
    if (!stage.classList.contains("long")) return;
    const [width, height] = [overview.clientWidth, overview.clientHeight];
    const context = prepareCanvas(overview, width, height);
    const scale = height / stage.scrollHeight;
    context.fillStyle = themeColor("--line");
    context.fillRect(0, stage.scrollTop * scale, width, stage.clientHeight * scale);
    if (!focused) return;
    context.fillStyle = themeColor("--accent");
    focused.values.means.forEach((mean, index) => {
      context.globalAlpha = Math.sqrt(mean);
      context.fillRect(0, index * rowHeight * scale, width, Math.max(1.5, rowHeight * scale));
    });
    context.globalAlpha = 1;
  }

  function svg() {
    const shown = visibleRows();
    const rows = Math.max(queries.length, keys.length) <= MAX_SVG_ROWS ? [0, Math.max(queries.length, keys.length)] : shown;
    const focus = currentFocus();
    const [side, gap, top] = [180, 320, 28];
    const height = (rows[1] - rows[0]) * rowHeight + top + 8;
    const geometry = createGeometry({ heads, rowHeight, offset: rows[0] * rowHeight - top, left: side, right: side + gap });
    const lines = collectLines(focus, focus && loadFocus(focus), rows);
    const label = (token, index, x, anchor) => svgText(tokenLabel(token), { x, y: (index - rows[0] + 0.68) * rowHeight + top, "text-anchor": anchor, "font-size": rowHeight * 0.6 });
    return createSvg("svg", { width: 2 * side + gap, height, viewBox: `0 0 ${2 * side + gap} ${height}` },
      createSvg("title", { text: `${layerName(attention)}, heads ${heads.join(", ")}` }),
      svgText(`${app.config.model.name}: ${layerName(attention)}`, { x: 8, y: 18, "font-size": 13 }),
      createSvg("g", {}, ...svgLines(lines, geometry, 1.5)),
      ...queries.slice(...rows).map((token, i) => label(token, rows[0] + i, side - 6, "end")),
      ...keys.slice(...rows).map((token, i) => label(token, rows[0] + i, side + gap + 6, "start")));
  }

  return { update, svg, redraw: requestDraw, stepLayer: step => app.change({ path: picker.neighbor(step) }), close: stopSize };
}
