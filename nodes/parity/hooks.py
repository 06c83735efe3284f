"""A parity run's connections to ComfyUI: cancel, the node's progress bar, a line of text on the node and in the log."""
import logging

from .vae import Hooks

STEPS = 1000
log = logging.getLogger("metal_kernels")


def tick():
    """Raise ComfyUI's interrupt if the user pressed cancel."""
    from comfy import model_management

    model_management.throw_exception_if_processing_interrupted()


def hooks():
    """`Hooks` of the node that runs now."""
    from comfy.utils import ProgressBar

    bar = ProgressBar(STEPS)
    return Hooks(tick, _Progress(bar), say)


def say(text):
    """Show a sentence on the node while it works, and log it."""
    log.info("Metal Kernels parity: %s", text)
    try:
        from comfy_execution.utils import get_executing_context
        from server import PromptServer

        context = get_executing_context()
        if context is not None:
            PromptServer.instance.send_progress_text(text, context.node_id)
    except Exception:  # no server in this process, or one without this call: the log has the sentence
        log.debug("Metal Kernels parity: the sentence can't be shown on the node", exc_info=True)


class _Progress:
    """Tells the bar of whole steps only: it is called before every torch call."""

    def __init__(self, bar):
        self.bar, self.shown = bar, -1

    def __call__(self, fraction):
        step = min(STEPS, int(fraction * STEPS))
        if step > self.shown:
            self.shown = step
            self.bar.update_absolute(step, STEPS)
