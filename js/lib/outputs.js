// What the browser receives from the server, read: pure functions, without ComfyUI.

// Whether a node of this definition (an entry of /object_info) is one of this pack's, which may show a report. A loader does
// so as well, and is no output node.
export function showsReport(definition) {
  return /^Metal Kernels(\/|$)/.test(definition?.category ?? "");
}

// The text of a node's result (the `output` of an "executed" message), or null where there is none.
export function textOf(output) {
  const text = output?.text;
  if (Array.isArray(text)) return text.length > 0 ? text.join("\n") : null;
  return typeof text === "string" ? text : null;
}

// Whether lines must not be broken: the text holds a table. Other reports are read more easily within the node's width.
export function holdsTable(text) {
  return /^\|/m.test(text);
}

// The node of an id as the server has it: "7", or "12:7" for node 7 of the subgraph that is node 12. Null if there is none.
export function findNode(graph, id) {
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(part) ?? graph?.getNodeById(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}
