// Image view: the weights of one query over the patches of the picture, of two models side by side if they are compared.

import { create } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { createImagePanel, imageLayers } from "../widgets/image-panel.js";

export const imageView = {
  name: "image",
  label: "Image",
  help: {
    sentences: ["The bright patches of the picture, or frames of a clip, are the ones that the chosen query attends to; the others are dimmed.",
      "Point at one, or choose a query in the list, and switch heads on and off to see how the mean of their weights changes."],
    equation: "weights = softmax(QKᵀ / √d), shown for the keys that are patches",
  },
  isAvailable: app => imageLayers(app.trace).length > 0,
  open: openImageView,
};

function openImageView({ body }, app) {
  const { model } = app.config;
  const onFocus = index => app.change({ focus: `q${index}` });
  const panels = [createImagePanel({ app, name: model.name, trace: app.trace, weights: app.weights, fields: ["path", "heads"], onFocus })];
  const columns = create("div", { class: "columns" }, panels[0].element);
  body.append(columns);
  let isClosed = false;

  /** The same picture in the other model, with layers and heads of its own. */
  async function loadOther() {
    const other = await app.traceOther();
    if (isClosed || imageLayers(other.trace).length === 0) return;
    panels.push(createImagePanel({ app, name: model.other_model, ...other, fields: ["otherPath", "otherHeads"], onFocus }));
    columns.replaceChildren(...panels.map((panel, i) => create("div", {}, create("h2", { text: [model.name, model.other_model][i] }), panel.element)));
    update();
  }

  function update() {
    panels.forEach(panel => panel.update());
  }

  if (model.other_model) track(loadOther()).catch(app.reportError);
  return { update, stepLayer: step => app.change({ path: panels[0].neighbor(step) }), close: () => { isClosed = true; } };
}
