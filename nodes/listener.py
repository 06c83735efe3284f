"""What a feature hears of a prompt that runs. `execution.py` does the telling."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a prompt ended. kind: "success", "failed" or "interrupted"; the node and the message where they are known."""

    kind: str
    node_id: str | None = None
    message: str = ""


class Listener:
    """What a feature hears, on the thread that runs the prompt unless a node works in threads of its own.

    Starts are told in the order of registration, ends in the reverse. An exception is logged once and breaks no prompt.
    """

    def wanted(self, prompt):
        """Asked at each prompt's start, with its nodes as sent; only a listener that says yes hears of the prompt."""
        return True

    def prompt_started(self, prompt):
        """A `Prompt`; its dynprompt is still None."""

    def node_started(self, node_id):
        """Before the node's inputs are gathered; again each time that a lazy node is taken up again."""

    def node_progress(self, node_id, value, maximum):
        """A node's progress bar moved: every step of a sampler."""

    def node_finished(self, node_id):
        """A node that had started has its outputs. Not told of one that failed: `prompt_ended` names it."""

    def node_cached(self, node_id):
        """A node that never started: its outputs came from the cache."""

    def call_started(self, node_id):
        """The node's function is about to be called: its lazy check, or its work on one item of a list."""

    def call_ended(self, node_id):
        """That call is over, whether it returned, raised or was interrupted."""

    def failure_note(self, node_id):
        """A node has failed: one sentence for the error that the browser shows, or "". `node_id` is of the prompt as
        sent; for a node made by expansion it is the node that made it."""
        return ""

    def prompt_ended(self, outcome):
        """Always, once. Calls still open (async nodes of a prompt that failed) get no `call_ended` after it."""
