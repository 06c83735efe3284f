"""How long work reaches its user: cancel, the node's progress bar, a sentence on the node and in the log."""
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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


def hooks(about):
    """`Hooks` of the node that runs now. about: the part of the pack that the log names, "FP8"."""
    return Hooks(tick, _bar(), partial(_say, about, logging.INFO), partial(_say, about, logging.WARNING))


def tick():
    """Raise ComfyUI's interrupt if the user pressed cancel."""
    from comfy import model_management

    model_management.throw_exception_if_processing_interrupted()


def _bar():
    """Moves the bar by whole steps, forward only: it may be called before every torch operation."""
    from comfy.utils import ProgressBar

    bar, shown = ProgressBar(STEPS), -1

    def progress(fraction):
        nonlocal shown
        step = min(STEPS, int(fraction * STEPS))
        if step > shown:
            shown = step
            bar.update_absolute(step, STEPS)

    return progress


def _say(about, level, text):
    log.log(level, "Metal Kernels %s: %s", about, text)
    try:
        from comfy_execution.utils import get_executing_context
        from server import PromptServer

        context = get_executing_context()
        if context is not None:
            PromptServer.instance.send_progress_text(text, context.node_id)
    except Exception:  # no server in this process, or one without this call: the log has the sentence
        log.debug("Metal Kernels %s: the sentence can't be shown on the node", about, exc_info=True)
