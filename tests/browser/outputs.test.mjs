import assert from "node:assert/strict";
import test from "node:test";

import { findNode, holdsTable, showsReport, textOf } from "../../js/lib/outputs.js";

test("nodes of this pack, and no others", () => {
  assert.equal(showsReport({ output_node: true, category: "Metal Kernels" }), true);
  assert.equal(showsReport({ output_node: false, category: "Metal Kernels/FP8" }), true);
  for (const other of [{ category: "image" }, { category: "Metal Kernels 2" }, {}, undefined, null])
    assert.equal(showsReport(other), false);
});

test("the text of a result", () => {
  assert.equal(textOf({ text: ["one\ntwo"], images: [] }), "one\ntwo");
  assert.equal(textOf({ text: ["one", "two"] }), "one\ntwo");
  assert.equal(textOf({ text: "one" }), "one");
  assert.equal(textOf({ text: [""] }), "");
  for (const nothing of [undefined, null, {}, { text: [] }, { images: [] }]) assert.equal(textOf(nothing), null);
});

test("tables keep their lines", () => {
  assert.equal(holdsTable("a\n| node | time |\n|------|------|"), true);
  assert.equal(holdsTable("max rel error 3 (of |reference|, at least 1)"), false);
});

test("a node by the server's id, also inside subgraphs", () => {
  const graph = (nodes) => ({ getNodeById: (id) => nodes[id] });
  const inner = { id: 3 };
  const root = graph({ 7: { id: 7 }, 12: { id: 12, subgraph: graph({ 3: inner }) } });
  assert.equal(findNode(root, "7").id, 7);
  assert.equal(findNode(root, "12:3"), inner);
  for (const gone of ["8", "7:3", "12:4", "12:3:1"]) assert.equal(findNode(root, gone), null);
  assert.equal(findNode(undefined, "7"), null);
});

test("ids that a graph knows as numbers only", () => {
  const node = { id: 7 };
  assert.equal(findNode({ getNodeById: (id) => (id === 7 ? node : undefined) }, "7"), node);
});
