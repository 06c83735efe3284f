"""When the numbers are read: a thread, the boundaries of nodes and steps, and every call of a patched op.

The thread alone is not enough: a C++ call that holds the interpreter's lock blinds it. Nothing of this exists while
no prompt holds a report node.
"""
import logging
import threading
import time
from contextlib import ExitStack

from .. import execution
from . import calls, deliver
from .session import Session
from .source import MpsSource, obstacle

NODE = "MetalMemoryReport"
INTERVAL = 0.01  # seconds between two readings of the thread

log = logging.getLogger("metal_kernels")


def is_report(node):
    return node.get("class_type") == NODE


class Meter(execution.Listener):
    """A session for each prompt that holds a report node. More than one where a node runs a prompt of its own."""

    def __init__(self, make_source=MpsSource, obstacle=obstacle, kernel_calls=calls, now=time.perf_counter,
                 interval=INTERVAL, deliver=deliver.deliver):
        self.interval = interval
        self._make_source, self._obstacle, self._calls, self._now = make_source, obstacle, kernel_calls, now
        self._deliver = deliver
        self._lock = threading.RLock()
        self._sessions = []
        self._thread, self._stop = None, None
        self._paused = 0
        self._failed = None, ""
        self._watching = ExitStack()

    def wanted(self, prompt):
        return any(is_report(node) for node in prompt.values()) and self._obstacle() is None

    def prompt_started(self, prompt):
        with self._lock:
            outer = self._sessions[-1] if self._sessions else None
            try:
                session = Session(prompt, self._now, self._make_source(), self._calls, outer, self.interval)
            except Exception as error:
                self._failed = prompt.prompt_id, f"memory can't be read: {type(error).__name__}: {error}"
                raise
            session.files = {wanted for node in prompt.prompt.values() if is_report(node)
                             for wanted in deliver.files_wanted(**node.get("inputs", {}))}
            self._sessions.append(session)
            if len(self._sessions) == 1:
                self._begin()

    def node_progress(self, node_id, value, maximum):
        self._tell("sample", "boundaries")

    def node_started(self, node_id):
        self._tell("find_cached")  # while they are: memory pressure may drop them later

    def node_cached(self, node_id):
        if not self._is_report(node_id):
            self._tell("node_cached", node_id)

    def node_finished(self, node_id):
        self._tell("node_finished", node_id)

    def call_started(self, node_id):
        if not self._is_report(node_id):
            self._tell("call_started", node_id)

    def call_ended(self, node_id):
        self._tell("call_ended", node_id)

    def prompt_ended(self, outcome):
        with self._lock:
            if not self._sessions:  # it did not start: its first reading failed
                return
            session = self._sessions[-1]
            try:
                session.end(outcome)
            finally:
                self._sessions.pop()
                thread = None if self._sessions else self._end()
        if thread is not None:
            thread.join()
        self._deliver(session)

    def session(self):
        """(the session of the prompt that runs, a lock to hold while it is read); (None, lock) without one."""
        return (self._sessions[-1] if self._sessions else None), self._lock

    def why_not(self):
        """One sentence: why there is no session."""
        prompt = execution.current()
        if prompt is not None and prompt.prompt_id == self._failed[0]:
            return self._failed[1]
        return self._obstacle() or execution.problem() or (
            "this report node was made while the graph ran; a prompt is recorded when it holds one from its start")

    def _is_report(self, node_id):
        return bool(self._sessions) and is_report(self._sessions[-1].prompt.node(node_id))

    def _tell(self, event, *args):
        with self._lock:
            if self._sessions:
                for outer in self._sessions[:-1]:
                    outer.sample("boundaries")
                getattr(self._sessions[-1], event)(*args)

    def _begin(self):
        self._stop, self._paused = threading.Event(), 0
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="metal memory", daemon=True)
        self._thread.start()
        self._watching.enter_context(self._calls.watched(self._patched_call, self._self_check))

    def _end(self):
        """The thread, told to stop: it may be waiting for the lock."""
        self._watching.close()
        self._stop.set()
        thread, self._thread = self._thread, None
        return thread

    def _run(self, stop):
        while not stop.wait(self.interval):
            try:
                with self._lock:
                    if not stop.is_set() and not self._paused:
                        for session in self._sessions:
                            session.sample()
            except Exception as error:
                self._note(error)
                return

    def _patched_call(self):
        try:
            with self._lock:
                for session in self._sessions:
                    session.glance()
        except Exception as error:
            self._note(error)

    def _self_check(self, begins):
        """A kernel's self-check is no node's work: nothing is read meanwhile, and its peak is not counted."""
        try:
            with self._lock:
                self._paused += 1 if begins else -1
                if self._sessions and begins:
                    self._sessions[-1].count()
                elif self._sessions:
                    self._sessions[-1].source.take_peaks()
        except Exception as error:
            self._note(error)

    def _note(self, error):
        """A number could not be read: the report says so, and goes on with the others."""
        with self._lock:
            for session in self._sessions:
                if session.trouble is None:
                    session.trouble = f"some numbers could not be read: {type(error).__name__}: {error}"
                    log.warning("Metal Kernels memory: %s", session.trouble)


meter = Meter()
execution.add_listener(meter)
