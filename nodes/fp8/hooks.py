"""How a load or a save reaches its user: cancel, the node's progress bar, a sentence on the node and in the log."""
import logging
from collections.abc import Callable
from dataclasses import dataclass

STEPS = 1000
log = logging.getLogger("metal_kernels")


@dataclass(frozen=True)
class Hooks:
    """`tick` raises to cancel, `progress` takes 0 to 1, `say` and `warn` a sentence."""

    tick: Callable = lambda: None
    progress: Callable = lambda fraction: None
    say: Callable = lambda text: None
    warn: Callable = lambda text: None

    def part(self, first, last):
        """The same for a part of the work, which fills the bar from `first` to `last`."""
        return Hooks(self.tick, lambda done: self.progress(first + (last - first) * done), self.say, self.warn)


def hooks():
    """`Hooks` of the node that runs now."""
    from comfy import model_management
    from comfy.utils import ProgressBar

    bar, shown = ProgressBar(STEPS), -1

    def progress(fraction):
        nonlocal shown
        step = min(STEPS, int(fraction * STEPS))
        if step > shown:
            shown = step
            bar.update_absolute(step, STEPS)

    return Hooks(model_management.throw_exception_if_processing_interrupted, progress, say, warn)


def say(text):
    """Show a sentence on the node while it works, and log it."""
    log.info("Metal Kernels FP8: %s", text)
    _show(text)


def warn(text):
    """As `say`, and as a warning in the log."""
    log.warning("Metal Kernels FP8: %s", text)
    _show(text)


def _show(text):
    try:
        from comfy_execution.utils import get_executing_context
        from server import PromptServer

        context = get_executing_context()
        if context is not None:
            PromptServer.instance.send_progress_text(text, context.node_id)
    except Exception:  # no server in this process, or one without this call: the log has the sentence
        log.debug("Metal Kernels FP8: the sentence can't be shown on the node", exc_info=True)
