// The tabs, and around the current view its tools, the help panel and the menu Save.

import { create, createButton, uniqueId } from "./widgets/dom.js";
import { beginWork } from "./widgets/frames.js";
import { download, svgFile } from "./drawing/svg.js";

/** Fill the page's main part with tabs for the views that the model has. */
export function createViewFrame(app, allViews) {
  const main = document.getElementById("main");
  const panelId = uniqueId("panel");
  const tabs = create("div", { class: "tabs", role: "tablist", "aria-label": "Views", on: { keydown: moveTab } });
  const panel = create("section", { id: panelId, class: "panel", role: "tabpanel" });
  let views = [];
  let current = null;
  main.replaceChildren(tabs, panel);

  function createTab(view) {
    return createButton(view.label, () => app.openView(view.name), { id: `tab-${view.name}`, role: "tab", "aria-controls": panelId });
  }

  function moveTab(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const place = views.findIndex(view => view.name === app.state.view);
    const next = Number.isFinite(step) ? (place + step + views.length) % views.length : step < 0 ? 0 : views.length - 1;
    app.openView(views[next].name);
    tabs.children[next].focus();
  }

  function showTabs(view) {
    const available = allViews.filter(other => other.isAvailable(app));
    if (available.length !== views.length || available.some((other, i) => other !== views[i])) {
      views = available;
      tabs.replaceChildren(...views.map(createTab));
    }
    [...tabs.children].forEach((tab, i) => {
      const isSelected = views[i] === view;
      tab.setAttribute("aria-selected", isSelected);
      tab.tabIndex = isSelected ? 0 : -1;
      if (isSelected) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    panel.setAttribute("aria-labelledby", `tab-${view.name}`);
  }

  function open() {
    if (!app.trace) return;
    current?.close?.();
    const view = allViews.find(other => other.name === app.state.view && other.isAvailable(app)) ?? allViews.find(other => other.isAvailable(app));
    app.state.view = view.name;
    showTabs(view);
    const tools = create("div", { class: "tools" });
    const body = create("div", { class: `body ${view.name}-view` });
    const help = createHelp(view);
    panel.replaceChildren(create("div", { class: "bar" }, tools, create("div", { class: "corner" }, createSaveMenu(), help.button)), help.panel, body);
    current = view.open({ tools, body }, app);
    current.update();
  }

  function createHelp(view) {
    const id = uniqueId("help");
    const helpPanel = create("div", { id, class: "help", hidden: true }, create("p", { text: view.help.sentences.join(" ") }), create("p", { class: "equation", text: view.help.equation }));
    const button = createButton("?", () => {
      helpPanel.hidden = !helpPanel.hidden;
      button.setAttribute("aria-expanded", !helpPanel.hidden);
    }, { class: "round", "aria-expanded": "false", "aria-controls": id, "aria-label": `What this view shows: ${view.label}` });
    return { button, panel: helpPanel };
  }

  function createSaveMenu() {
    const message = create("span", { class: "message", role: "status" });
    const items = create("div", { class: "menu" });
    const menu = create("details", { class: "save" }, create("summary", { text: "Save" }), items);
    const saveSvg = createButton("Picture as SVG", async () => {
      download(svgFile(await current.svg()), `${app.state.view}.svg`);
      menu.open = false;
    });
    const copyLink = createButton("Copy link", async () => {
      try {
        await navigator.clipboard.writeText(app.link());
        message.textContent = "Link copied.";
      } catch {
        message.textContent = "This browser does not allow copying: copy the address bar.";
      }
    });
    menu.addEventListener("toggle", () => {
      message.textContent = "";
      items.replaceChildren(...(current?.svg ? [saveSvg] : []), ...(current?.saves ?? []).map(({ label, save }) => createButton(label, save)), copyLink, message);
    });
    menu.addEventListener("keydown", event => {
      if (event.key !== "Escape") return;
      menu.open = false;
      menu.firstChild.focus();
    });
    menu.addEventListener("focusout", event => { if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false; });
    return menu;
  }

  document.addEventListener("pointerdown", event => {
    for (const menu of panel.querySelectorAll(".save[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  document.addEventListener("keydown", event => {
    const isTyping = event.target.closest("input, textarea, select");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "[") current?.stepLayer?.(-1);
    else if (event.key === "]") current?.stepLayer?.(1);
  });

  return {
    open,
    /** Show a sentence instead of a view, where there is no trace yet. */
    showHint(text) {
      panel.replaceChildren(create("p", { class: "status", role: "status", text }));
      beginWork()(); // nothing is left to load or draw
    },
    update() {
      current?.update();
    },
  };
}
