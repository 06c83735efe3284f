"""MetalKernelsStatus: the state of the kernels on the node's face, as text and as JSON."""
import json

from comfy_api.latest import io, ui

from .report import as_text, collect


class MetalKernelsStatus(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalKernelsStatus",
            display_name="Metal Kernels Status",
            category="Metal Kernels",
            description="Shows which PyTorch MPS operations this pack has taken over, why or why not, and how often "
            "each kernel ran since ComfyUI started. Runs in every prompt. Connect any output to `after` to read the "
            "status once that node has run.",
            search_aliases=["mps", "metal", "apple silicon", "mac", "kernel", "patch", "status", "diagnostics"],
            inputs=[
                io.AnyType.Input(
                    "after",
                    optional=True,
                    tooltip="Any output. The status is read after the node it comes from has run.",
                ),
            ],
            outputs=[
                io.String.Output("text", tooltip="The status for people."),
                io.String.Output("json", tooltip="The same for programs."),
            ],
            is_output_node=True,
            not_idempotent=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_):
        # Counters move without any input changing. A new NaN each time: the same object would equal itself in
        # ComfyUI's cache key, and the node would run once.
        return float("nan")

    @classmethod
    def execute(cls, after=None):
        report = collect()
        text = as_text(report)
        return io.NodeOutput(text, json.dumps(report, indent=2), ui=ui.PreviewText(text))
