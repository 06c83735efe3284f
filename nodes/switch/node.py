"""MetalKernelsSwitch: passes any value through; the nodes downstream of it run with its kernels."""
from comfy_api.latest import io

from . import kernels
from .governance import MODES, as_text
from .state import governor

HELP = "auto: patched where this torch needs it. on: patched anyway. off: torch's own kernel."


class MetalKernelsSwitch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("value")
        # Saved workflows hold the widgets' values by position: new kernels are appended, none is ever moved or renamed.
        return io.Schema(
            node_id="MetalKernelsSwitch",
            display_name="Metal Kernels Switch",
            category="Metal Kernels",
            description="Passes any value through unchanged. Every node downstream of it runs with the kernels chosen "
            "here; where several switches are upstream, the nearest one counts. Changing it re-runs just those nodes.",
            search_aliases=["mps", "metal", "apple silicon", "mac", "toggle", "patch", "kernel", "pad", "A/B", "stock"],
            inputs=[
                io.MatchType.Input("value", template=template,
                                   tooltip="Any value: a model, a VAE, a latent, an image. It comes out unchanged."),
                *(io.Combo.Input(name, options=list(MODES), default="auto", optional=True, tooltip=f"{repairs} {HELP}")
                  for name, repairs in kernels.repairs().items()),
            ],
            outputs=[
                io.MatchType.Output(template=template, id="value", display_name="value",
                                    tooltip="The value that came in."),
                io.String.Output("kernels", display_name="kernels",
                                 tooltip="The settings as text, for labels and file names: pad=off"),
            ],
        )

    @classmethod
    def execute(cls, value, **modes):
        values = {name: modes[name] for name in kernels.names() if name in modes}
        governor.switch_ran(values)
        return io.NodeOutput(value, as_text(values))
