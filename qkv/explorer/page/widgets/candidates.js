// The candidates of one generation step: probability before and after the logits processors, a click continues with one.

import { create } from "./dom.js";
import { formatWeight, shortText, visibleText } from "./token-text.js";

function createBar(probability, name) {
  const bar = create("td", { class: `number probability ${name}`, text: formatWeight(probability) });
  bar.style.setProperty("--weight", probability);
  return bar;
}

function createCandidate(candidate, isChosen, onChoose) {
  const text = shortText(candidate.text);
  const button = create("button", { type: "button", class: "link", dir: "auto", text, title: `Continue with ${visibleText(candidate.text.slice(0, 200))} (id ${candidate.id})`, on: { click: () => onChoose(candidate.id) } });
  return create("tr", { class: isChosen ? "chosen" : null }, create("th", { scope: "row" }, button, candidate.is_end ? create("span", { class: "faint", text: " ends the text" }) : null),
    createBar(candidate.probability, "before"), createBar(candidate.processed, "after"), create("td", {}, ...(isChosen ? ["✓", create("span", { class: "label", text: " chosen" })] : [])));
}

/** A table of candidates; `chosen` is the id that the text continues with. */
export function createCandidates({ candidates, chosen, onChoose }) {
  const headers = [["token", null], ["probability", "number"], ["after processors", "number"], ["", null]];
  return create("table", { class: "candidates" },
    create("caption", { text: "Next token" }),
    create("thead", {}, create("tr", {}, ...headers.map(([text, name]) => text ? create("th", { scope: "col", class: name, text }) : create("td", {})))),
    create("tbody", {}, ...candidates.map(candidate => createCandidate(candidate, candidate.id === chosen, onChoose))));
}
