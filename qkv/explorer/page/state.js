// The complete state of the page, and its form in the URL's hash, so that a link restores the exact view.

import { clamp } from "./widgets/dom.js";

const MAX_HEADS_TEXT = 4096;
export const MAX_BEAMS = 16;
export const MAX_NEW_TOKENS = 200; // of beam search
const TEXT = { read: value => value, write: value => value };
const NUMBER = { read: readNumber, write: String };
const FLAG = { read: value => value === "1", write: value => value ? "1" : "0" };
const IDS = { read: value => value === "" ? [] : value.split(",").map(Number).filter(Number.isInteger), write: ids => ids.join(",") };
const HEADS = { read: readHeads, write: writeHeads };
const INDEX = { read: value => /^\d{1,9}$/.test(value) ? Number(value) : null, write: String };
const HEAD = { read: value => value === "mean" ? value : readNumber(value), write: String };
const ZOOM = { read: readZoom, write: numbers => numbers.join(",") };
const BEAMS = between(2, MAX_BEAMS);
const NEW_TOKENS = between(1, MAX_NEW_TOKENS);
const FILTER = choice(["all", "aa", "ab", "ba", "bb"]);
const CONTRAST = choice(["root", "linear"]);
const OPENED = choice(["head", "matrix"]);

// name: [initial value, how it is written]
const FIELDS = {
  text: ["", TEXT],
  pair: ["", TEXT],
  target: ["", TEXT],
  image: ["", TEXT], // name of a picture that the server has
  view: ["head", TEXT],
  path: ["", TEXT], // path of the attention layer shown
  opens: ["head", OPENED], // model: the view that a click on a thumbnail opens
  heads: [null, HEADS], // heads of the head view; null: all of them
  head: [0, HEAD], // head of the matrix and the neurons: a number or "mean"
  filter: ["all", FILTER], // sentence pair
  focus: ["", TEXT], // "q5": query 5, "k3": key 3, "q5k3": both
  key: [null, INDEX], // neurons: the key whose numbers are shown
  top: [0, NUMBER], // first visible row of the head view
  zoom: [null, ZOOM], // matrix and compare: key and query at the corner, pixels per token
  contrast: ["root", CONTRAST],
  rollout: [false, FLAG],
  cross: ["", TEXT], // alignment: path, "" is the best guess
  crossHead: ["mean", HEAD],
  words: [true, FLAG],
  ids: [[], IDS], // generation: tokens chosen so far
  at: [0, NUMBER], // generation: the step shown
  settings: ["", TEXT], // generation: settings other than the initial ones
  stepPath: ["", TEXT],
  stepHead: ["mean", HEAD],
  beams: [4, BEAMS],
  maxNewTokens: [40, NEW_TOKENS], // beam search: number of steps at most
  otherPath: ["", TEXT], // compare: layer and head of the other model
  otherHead: [0, HEAD],
  otherHeads: [null, HEADS],
  otherZoom: [null, ZOOM], // compare: zoom and cell of the other model, where its tokens differ
  otherFocus: ["", TEXT],
};

/** A text out of a list; another one is read as the first. */
function choice(values) {
  return { read: value => values.includes(value) ? value : values[0], write: value => value };
}

/** A whole number within limits. */
function between(low, high) {
  return { read: value => clamp(readNumber(value), low, high), write: String };
}

/** A whole number from 0 on; other texts are read as 0. */
function readNumber(value) {
  return /^\d{1,9}$/.test(value) ? Number(value) : 0;
}

/** A coordinate of the matrix with the digits that a link has. */
export function roundZoom(number) {
  return Math.round(number * 1000) / 1000;
}

function readZoom(value) {
  const numbers = value.split(",").map(Number);
  return numbers.length === 3 && numbers.every(Number.isFinite) ? numbers : null;
}

function readHeads(value) {
  if (value === "none") return [];
  const heads = value.slice(0, MAX_HEADS_TEXT).split(",").flatMap(part => {
    const [first, last = first] = part.split("-").map(Number);
    return Array.from({ length: Math.min(Math.max(last - first + 1, 0), 1024) }, (_, i) => first + i);
  });
  return heads.filter(Number.isInteger);
}

function writeHeads(heads) {
  if (heads.length === 0) return "none";
  const runs = [];
  for (const head of heads) {
    const run = runs.at(-1);
    if (run && run[1] === head - 1) run[1] = head;
    else runs.push([head, head]);
  }
  return runs.map(([first, last]) => first === last ? `${first}` : `${first}-${last}`).join(",");
}

/** The state of a page that was just opened. */
export function initialState() {
  return Object.fromEntries(Object.entries(FIELDS).map(([name, [value]]) => [name, value]));
}

/** Read the state from the URL's hash; what it does not name is as in `base`. */
export function readState(hash, base = initialState()) {
  const state = { ...base };
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (Object.hasOwn(FIELDS, name)) state[name] = FIELDS[name][1].read(value);
  }
  return state;
}

/** The hash of a state: only what differs from `base`. */
export function writeState(state, base = initialState()) {
  const parameters = new URLSearchParams();
  for (const [name, [, form]] of Object.entries(FIELDS)) {
    const [value, initial] = [state[name], base[name]].map(item => item === null ? null : form.write(item));
    if (value !== null && value !== initial) parameters.set(name, value);
  }
  return `#${parameters}`;
}

/** Read a focus such as "q5" or "q5k3" as {side: "query", index: 5}; null where there is none or the sequence is shorter. */
export function readFocus(focus, [queryCount, keyCount]) {
  const match = /^([qk])(\d+)(?:k\d+)?$/.exec(focus);
  if (!match) return null;
  const [side, index] = [match[1] === "q" ? "query" : "key", Number(match[2])];
  return index < (side === "query" ? queryCount : keyCount) ? { side, index } : null;
}

/** Read a focus of the matrix: "q5k3", or "q5" as the cell of the query's own position; null where there is none. */
export function readCell(focus, [queryCount, keyCount]) {
  const match = /^q(\d+)(?:k(\d+))?$/.exec(focus);
  if (!match) return null;
  const row = Number(match[1]);
  const column = match[2] === undefined ? Math.min(row, keyCount - 1) : Number(match[2]);
  return row < queryCount && column < keyCount ? { row, column } : null;
}

export function writeFocus(focus) {
  return focus ? `${focus.side[0]}${focus.index}` : "";
}
