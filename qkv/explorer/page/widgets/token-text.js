// Tokens as text that is safe to show: control characters are visible, long tokens shortened, writing directions isolated.

const MAX_LENGTH = 32;
const FIRST_STRONG_ISOLATE = "\u2068";
const POP_DIRECTIONAL_ISOLATE = "\u2069";
// C1 controls, zero-width space, bidirectional controls, line and paragraph separators, byte order mark, interlinear annotation, noncharacters.
const INVISIBLE = /[\u0080-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]/g;

/** Return the text with every control character replaced by a visible symbol. */
export function visibleText(text) {
  const visible = text.toWellFormed()
    .replaceAll("\t", "⇥").replaceAll("\n", "⏎") // more fonts have these than the symbols with letters
    .replace(/[\u0000-\u001f]/g, character => String.fromCharCode(0x2400 + character.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421")
    .replace(INVISIBLE, character => `⟨${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  return visible.trim() === "" ? "␣".repeat(Math.min(visible.length, 3)) || "∅" : visible;
}

/** Return the visible text, shortened to `maxLength` characters. */
export function shortText(text, maxLength = MAX_LENGTH) {
  const characters = Array.from(visibleText(text.slice(0, maxLength * 8)));
  const isShort = characters.length <= maxLength && text.length <= maxLength * 8;
  return isShort ? characters.join("") : characters.slice(0, maxLength - 1).join("") + "…";
}

/** Wrap a text so that its writing direction does not affect its surroundings, for a canvas, an SVG or a status line. */
export function isolate(text) {
  return FIRST_STRONG_ISOLATE + text + POP_DIRECTIONAL_ISOLATE;
}

/** The short, isolated text of a token. */
export function tokenLabel(token, maxLength = MAX_LENGTH) {
  return isolate(shortText(token.text, maxLength));
}

/** A weight or probability with the digits that matter. */
export function formatWeight(weight) {
  if (weight !== 0 && weight < 0.001) return "<0.001";
  return weight.toFixed(weight < 0.01 ? 3 : 2);
}

/** A real number with a true minus sign. */
export function formatNumber(number, digits = 2) {
  if (Number.isNaN(number)) return "masked";
  return number.toFixed(digits).replace("-", "−");
}
