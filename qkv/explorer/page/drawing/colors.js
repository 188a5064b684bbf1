// Colors of heads, weights and signed numbers in the light and the dark theme.

// Found by maximizing the smallest OKLab distance with normal, protan, deutan and tritan vision, in both themes at once;
// the first colors are the ones farthest apart.
const LIGHT_HEADS = ["#116adb", "#76031a", "#3c2593", "#a84700", "#b97081", "#6f981a", "#8031ab", "#0e5b45",
  "#65006b", "#58437d", "#6d7a4e", "#4a373e", "#714214", "#0b95b3", "#9c5090", "#4f656e"];
const DARK_HEADS = ["#90bdff", "#da404d", "#7a70e4", "#fc935d", "#fec6d1", "#b5ed51", "#cd7ffe", "#5fa48a",
  "#b156b6", "#9e8aca", "#b8c697", "#907981", "#bd885c", "#87e3ff", "#ed9bde", "#96aeb8"];

// Stops from weight 0 to weight 1, monotone in lightness.
const LIGHT_WEIGHTS = ["#f3f4f5", "#c3d9ee", "#6fa5d8", "#1868ae", "#08315c"];
const DARK_WEIGHTS = ["#161c24", "#123a61", "#1f6cb0", "#6fb2ee", "#eaf4fd"];

// Stops from -1 to 1: orange, neutral, blue.
const LIGHT_SIGNED = ["#a84700", "#eda15f", "#f3f4f5", "#7fb0e0", "#0f5597"];
const DARK_SIGNED = ["#ffb27d", "#b45309", "#1a2029", "#2368a8", "#9fd0ff"];

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The color of a head; beyond sixteen heads colors repeat, which is why heads also carry their number. */
export function headColor(head) {
  const palette = isDark() ? DARK_HEADS : LIGHT_HEADS;
  return palette[head % palette.length];
}

/** A variable of the stylesheet, such as "--ink". */
export function themeColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function parseHex(color) {
  return [1, 3, 5].map(start => parseInt(color.slice(start, start + 2), 16));
}

/** Black or white, whichever is easier to read on the color. */
export function inkOn(color) {
  const [red, green, blue] = parseHex(color).map(byte => {
    const value = byte / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

function interpolate(stops, fraction) {
  const place = Math.max(0, Math.min(1, fraction)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [parseHex(stops[low]), parseHex(stops[low + 1])];
  return from.map((value, i) => Math.round(value + (to[i] - value) * (place - low)));
}

function toHex(rgb) {
  return "#" + rgb.map(value => value.toString(16).padStart(2, "0")).join("");
}

/** How a weight becomes a fraction of the color ramp: linear, or the square root, which shows small weights. */
export const CONTRASTS = { linear: weight => weight, root: Math.sqrt };

/** The color of a weight in [0, 1]. */
export function weightColor(weight, contrast = "root") {
  return toHex(interpolate(isDark() ? DARK_WEIGHTS : LIGHT_WEIGHTS, CONTRASTS[contrast](weight)));
}

/** The color of a number in [-1, 1]: orange is negative, blue positive. */
export function signedColor(fraction) {
  return toHex(interpolate(isDark() ? DARK_SIGNED : LIGHT_SIGNED, (fraction + 1) / 2));
}

/** 1,024 colors from weight 0 to weight 1 as little-endian RGBA pixels. */
export function weightPixels(contrast = "root") {
  const stops = isDark() ? DARK_WEIGHTS : LIGHT_WEIGHTS;
  return Uint32Array.from({ length: 1024 }, (_, i) => {
    const [red, green, blue] = interpolate(stops, CONTRASTS[contrast](i / 1023));
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
}

/** 256 colors from -1 to 1 as fill styles. */
export function signedStyles() {
  return Array.from({ length: 256 }, (_, i) => signedColor(i / 127.5 - 1));
}
