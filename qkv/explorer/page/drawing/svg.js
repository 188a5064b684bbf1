// Pictures as SVG files that stand alone: every color is an attribute, every label is text.

import { createSvg } from "../widgets/dom.js";
import { themeColor } from "./colors.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** A label in the ink of the page. */
export function svgText(text, attributes) {
  return createSvg("text", { text, fill: themeColor("--ink"), "font-family": FONT, ...attributes });
}

/** The file of a picture, with the page's background. */
export function svgFile(picture) {
  const copy = picture.cloneNode(true);
  copy.prepend(createSvg("rect", { width: "100%", height: "100%", fill: themeColor("--page") }));
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

/** Offer a file for download. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
