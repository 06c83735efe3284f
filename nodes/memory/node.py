"""MetalMemoryReport: what each node of the prompt took of memory, in numbers that never stand for one another."""
from comfy_api.latest import io, ui

from . import chart, deliver, report
from .now import report_now


class MetalMemoryReport(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("value")
        return io.Schema(
            node_id="MetalMemoryReport",
            display_name="Metal Memory Report",
            category="Metal Kernels",
            description="Shows how much memory each node took: live tensors, torch's pool, all Metal memory, and what "
            'is outside of it ("other allocations"). While a prompt holds this node the whole prompt is recorded; '
            "the node shows what ran before it. Runs in every prompt, and so does what hangs on its outputs.",
            search_aliases=["memory", "vram", "ram", "peak", "leak", "out of memory", "oom", "other allocations", "mps",
                            "mac", "profiler"],
            inputs=[
                io.MatchType.Input("value", template=template, optional=True,
                                   tooltip="Any value. It comes out unchanged; the report is made once it is there."),
                io.Boolean.Input("save_json", default=False, optional=True,
                                 tooltip="Save the final report in ComfyUI's output folder when the prompt ends, also "
                                 "when it fails or is interrupted."),
                io.String.Input("filename_prefix", default=deliver.PREFIX, optional=True,
                                tooltip="Name of that file, with a folder if you like. A number is added: nothing is "
                                "overwritten."),
            ],
            outputs=[
                io.MatchType.Output(template=template, id="value", display_name="value",
                                    tooltip="The value that came in."),
                io.String.Output("report", display_name="report", tooltip="The report so far, for people."),
                io.String.Output("table", display_name="table", tooltip="A row a node, as a Markdown table."),
                io.String.Output("json", display_name="json", tooltip="The same for programs, in bytes and seconds."),
                io.Image.Output("picture", display_name="picture", tooltip="Memory over time, and each node's peaks."),
            ],
            is_output_node=True,
            not_idempotent=True,
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, **_):
        # A new NaN each time is never equal to the one in ComfyUI's cache key.
        return float("nan")

    @classmethod
    def validate_inputs(cls, filename_prefix=deliver.PREFIX):
        return (isinstance(filename_prefix, str) and deliver.complaint(filename_prefix)) or True

    @classmethod
    def execute(cls, value=None, save_json=False, filename_prefix=deliver.PREFIX):
        data = report_now(save_json, filename_prefix)
        text, picture = report.as_text(data), chart.as_image(data)
        shown = {**ui.PreviewImage(picture, cls=cls).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(value, text, report.as_table(data), report.as_json(data), picture, ui=shown)
