// A list box of tokens that keeps only the visible rows in the document, so that thousands of tokens stay smooth.

import { create, uniqueId, clamp } from "./dom.js";
import { shortText, visibleText } from "./token-text.js";

const PAGE_ROWS = 10;
const MAX_TITLE = 2000;

/** Create a list of tokens. `onHover(index | null)` follows the pointer, `onClick(index)` is a click, `onPick(index | null)` the arrow keys and Escape. */
export function createTokenList({ label, side, onHover, onClick, onPick, onLeave = () => {} }) {
  const id = uniqueId("tokens");
  const element = create("ul", { class: `tokens ${side}`, role: "listbox", tabindex: 0, "aria-label": label });
  const rows = new Map();
  let tokens = [];
  let shade = null;
  let active = null;
  let visible = [0, 0];

  function createRow(index) {
    const token = tokens[index];
    const text = shortText(token.text, 48);
    const row = create("li", { id: `${id}-${index}`, role: "option", "aria-setsize": tokens.length, "aria-posinset": index + 1, "data-index": index },
      create("span", { class: "bar" }), create("bdi", { class: token.special ? "token special" : "token", dir: "auto", text }), create("span", { class: "value" }));
    row.title = `${visibleText(token.text.slice(0, MAX_TITLE))} (position ${index})`;
    row.style.top = `calc(var(--row) * ${index})`;
    return row;
  }

  function render() {
    const wanted = new Set();
    for (let index = visible[0]; index < visible[1]; index++) wanted.add(index);
    // The active row stays in the document: aria-activedescendant refers to it.
    if (active !== null) wanted.add(active);
    for (const [index, row] of rows) {
      if (wanted.has(index)) continue;
      row.remove();
      rows.delete(index);
    }
    for (const index of wanted) {
      if (!rows.has(index)) {
        rows.set(index, createRow(index));
        element.append(rows.get(index));
      }
      decorate(index, rows.get(index));
    }
    if (active === null) element.removeAttribute("aria-activedescendant");
    else element.setAttribute("aria-activedescendant", `${id}-${active}`);
  }

  function decorate(index, row) {
    const isActive = index === active;
    row.setAttribute("aria-selected", isActive);
    row.classList.toggle("here", isActive);
    const weight = shade ? shade(index) : null;
    row.classList.toggle("dim", weight !== null && weight.isDim === true);
    row.style.setProperty("--weight", weight === null ? 0 : weight.value);
    row.querySelector(".value").textContent = weight === null ? "" : weight.text;
  }

  function indexOf(event) {
    const row = event.target.closest("[data-index]");
    return row ? Number(row.dataset.index) : null;
  }

  const moves = {
    ArrowUp: index => index - 1,
    ArrowDown: index => index + 1,
    PageUp: index => index - PAGE_ROWS,
    PageDown: index => index + PAGE_ROWS,
    Home: () => 0,
    End: () => tokens.length - 1,
  };

  element.addEventListener("keydown", event => {
    if (event.key === "Escape") onPick(null);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") return onLeave(event);
    else if (moves[event.key]) {
      const start = active ?? (event.key === "ArrowUp" ? tokens.length : visible[0] - 1);
      active = clamp(moves[event.key](start), 0, tokens.length - 1); // at once: the next key may come before the next draw
      onPick(active);
    } else return;
    event.preventDefault();
  });
  element.addEventListener("pointerover", event => { if (event.pointerType !== "touch") onHover(indexOf(event)); });
  element.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") onHover(null); });
  element.addEventListener("click", event => {
    const index = indexOf(event);
    if (index !== null) onClick(index);
  });

  return {
    element,
    setTokens(newTokens) {
      tokens = newTokens;
      rows.forEach(row => row.remove());
      rows.clear();
      element.style.height = `calc(var(--row) * ${tokens.length})`;
    },
    /** Show rows [first, last), the active row, and the weight that `shadeOf(index)` gives as {value, text, isDim} or null. */
    show(first, last, activeIndex, shadeOf) {
      visible = [clamp(first, 0, tokens.length), clamp(last, 0, tokens.length)];
      active = activeIndex;
      shade = shadeOf;
      render();
    },
  };
}

const MEASURED_TOKENS = 24;

/** The width in CSS pixels that the longest tokens need, shortened to `maxLength` characters. */
export function measureTokens(tokens, font, maxLength = 48) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = font;
  const longest = tokens.map(token => shortText(token.text, maxLength)).sort((a, b) => b.length - a.length).slice(0, MEASURED_TOKENS);
  return Math.max(0, ...longest.map(text => context.measureText(text).width));
}
