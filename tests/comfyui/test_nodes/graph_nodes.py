"""Nodes that shape a graph: sources of text, lists, expansions."""
from comfy_api.latest import io
from comfy_execution.graph import ExecutionBlocker
from comfy_execution.graph_utils import GraphBuilder


class TestText(io.ComfyNode):
    """A text that fits any input; with commas and `as_list`, a list of texts."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestText", category="test", inputs=[io.String.Input("text", default="")],
                         outputs=[io.AnyType.Output("text")])

    @classmethod
    def execute(cls, text):
        return io.NodeOutput(text)


class TestAgain(io.ComfyNode):
    """Hands its value on. With another tag ComfyUI runs what comes after it again, whatever its caches hold."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestAgain", category="test",
                         inputs=[io.AnyType.Input("value"), io.String.Input("tag")],
                         outputs=[io.AnyType.Output("value")])

    @classmethod
    def execute(cls, value, tag):
        return io.NodeOutput(value)


class TestList(io.ComfyNode):
    """A list, item by item: the nodes behind it run once for each. An item "!" is blocked: they don't run for that."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestList", category="test", inputs=[io.String.Input("items", default="a,b")],
                         outputs=[io.AnyType.Output("item", is_output_list=True)])

    @classmethod
    def execute(cls, items):
        return io.NodeOutput([ExecutionBlocker(None) if item == "!" else item for item in items.split(",") if item])


class TestNumber(io.ComfyNode):
    """A number that fits any input: no mode of a switch."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestNumber", category="test", inputs=[io.Int.Input("number", default=1)],
                         outputs=[io.AnyType.Output("number")])

    @classmethod
    def execute(cls, number):
        return io.NodeOutput(number)


class TestExpand(io.ComfyNode):
    """Becomes two TestPad nodes. The first links to nothing outside: ComfyUI's own cache key of it never changes.

    inner: the mode of a switch between the two; "" for none.
    """

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestExpand", category="test",
                         inputs=[io.AnyType.Input("value", optional=True),
                                 io.String.Input("inner", default="", optional=True)],
                         outputs=[io.AnyType.Output("value"), io.String.Output("first"), io.String.Output("second")],
                         enable_expand=True)

    @classmethod
    def execute(cls, value=None, inner=""):
        graph = GraphBuilder()
        first = graph.node("TestPad", id="first", seed=1)
        between = first.out(0)
        if inner:
            between = graph.node("MetalKernelsSwitch", id="inner", value=between, pad=inner).out(0)
        second = graph.node("TestPad", id="second", value=between, seed=2)
        return io.NodeOutput(second.out(0), first.out(1), second.out(1), expand=graph.finalize())


class TestShow(io.ComfyNode):
    """Shows any value's text and its type's name."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestShow", category="test", inputs=[io.AnyType.Input("value")],
                         outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, value):
        return io.NodeOutput(ui={"shown": [{"text": str(value)[:1000], "type": type(value).__name__}]})


NODES = [TestText, TestAgain, TestList, TestNumber, TestExpand, TestShow]
