// The reports on the faces of the pack's nodes. ComfyUI itself shows a node's pictures, but not its text.
import { app } from "/scripts/app.js";
import { api } from "/scripts/api.js";
import { findNode, holdsTable, showsReport, textOf } from "./lib/outputs.js";

const WIDGET = "metal_kernels_report";
const PROGRESS = "$$node-text-preview"; // ComfyUI's own, for what a node says while it works
const LINES = 9; // of the text, at the least; more when the node is made taller
const WIDTH = 380;

function reportWidget(node) {
  const found = node.widgets?.find((widget) => widget.name === WIDGET);
  if (found) return found;
  const element = document.createElement("textarea");
  element.readOnly = true;
  element.className = "comfy-multiline-input";
  element.style.fontFamily = "ui-monospace, Menlo, monospace";
  const widget = node.addDOMWidget(WIDGET, WIDGET, element, {
    serialize: false, // not part of what is sent to the server
    getValue: () => element.value,
    setValue: (text) => { element.value = text; },
    getMinHeight: () => LINES * 16,
  });
  widget.serialize = false; // nor of a saved workflow, whose widgets are known by their position
  return widget;
}

function show(node, text) {
  if (!node || text === null) return;
  const progress = node.widgets?.find((widget) => widget.name === PROGRESS);
  if (progress) {
    progress.onRemove?.();
    node.widgets.splice(node.widgets.indexOf(progress), 1);
  }
  const isNew = !node.widgets?.some((widget) => widget.name === WIDGET);
  const { element } = reportWidget(node);
  element.value = text;
  element.style.whiteSpace = holdsTable(text) ? "pre" : "pre-wrap";
  if (isNew) {
    const least = node.computeSize();
    node.setSize([Math.max(node.size[0], WIDTH), Math.max(node.size[1], least[1])]);
  }
  node.setDirtyCanvas?.(true, true);
}

app.registerExtension({
  name: "MetalKernels.Reports",

  async beforeRegisterNodeDef(nodeType, definition) {
    if (!showsReport(definition)) return;
    const stock = nodeType.prototype.onExecuted;
    nodeType.prototype.onExecuted = function (output, ...more) {
      stock?.call(this, output, ...more);
      show(this, textOf(output));
    };
  },

  // A workflow's tab is shown again: its nodes are new, their results are those that the browser has kept.
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) {
      const node = findNode(app.rootGraph ?? app.graph, id);
      if (showsReport(node?.constructor?.nodeData)) show(node, textOf(output));
    }
  },

  async setup() {
    // The memory report's last word comes when the prompt is over, however it ended.
    api.addEventListener("metal_kernels.memory", ({ detail }) => {
      for (const id of detail.nodes) show(findNode(app.rootGraph ?? app.graph, id), detail.text);
    });
  },
});
