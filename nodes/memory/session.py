"""One prompt's record: every reading is charged to the nodes whose functions run at that moment, and to the prompt."""
from dataclasses import dataclass, field

from .series import Series
from .source import NAMES

GROWING = ("current", "reserved", "driver", "outside")


@dataclass
class Peak:
    """The largest value seen of one number, when (seconds since the prompt's start), and which nodes ran then."""

    value: int | None = None
    at: float = 0.0
    during: tuple = ()

    def see(self, value, at, during):
        if value is not None and (self.value is None or value > self.value):
            self.value, self.at, self.during = value, at, during


def _peaks():
    return {name: Peak() for name in NAMES}


def _growth():
    return dict.fromkeys(GROWING, 0)


@dataclass
class Node:
    """What is known of a node that ran, or whose result was cached."""

    node_id: str
    status: str = "running"  # ran, running, waiting, cached, failed, interrupted
    calls: int = 0
    seconds: float = 0.0
    peaks: dict = field(default_factory=_peaks)
    growth: dict = field(default_factory=_growth)  # name -> bytes from the start of its calls to their ends, added up
    kernels: dict = field(default_factory=dict)  # kernel -> [calls taken, calls passed to stock]
    overlapped: set = field(default_factory=set)
    spans: list = field(default_factory=list)  # [start, end] of each call in seconds; end None while it runs


@dataclass
class Call:
    node: Node
    reading: object
    kernels: dict
    at: float


class Session:
    """Not thread-safe: the meter holds a lock.

    now     a clock, in seconds.
    source  as `source.MpsSource`.
    calls   as the module `calls`.
    outer   the session of the prompt whose node runs this one.
    """

    def __init__(self, prompt, now, source, calls, outer=None, interval=None):
        self.prompt, self.source, self.calls, self.outer = prompt, source, calls, outer
        self.interval = interval  # seconds between two readings of the thread
        self._now = now
        self._start = now()
        self.nodes = {}
        self.running = []
        self.peaks = _peaks()
        self.between = _growth()  # growth while no node ran
        self.series = Series()
        self.readings = {"thread": 0, "boundaries": 0, "patched calls": 0}
        self.recommended = source.recommended_maximum()
        self.outcome = None
        self.trouble = None
        self.ended_at = None
        self._looked = False
        self.files = set()  # prefixes of the files that are to be written at the end
        if outer is not None:
            outer.sample("boundaries")
            outer.count()
        else:
            source.take_peaks()
        self.first = self.last = self._idle_since = source.read()
        self._see(self.first, "boundaries")

    @property
    def seconds(self):
        return self.ended_at if self.ended_at is not None else self._now() - self._start

    def sample(self, how="thread"):
        """Read everything now."""
        self._see(self.source.read(), how)

    def glance(self):
        """At a patched call: read where something has moved."""
        current, driver = self.source.glance()
        peaks = [self.peaks, *(call.node.peaks for call in self.running)]
        if driver != self.last.driver or any(current > each["current"].value for each in peaks):
            self._see(self.source.read(with_footprint=False), "patched calls")

    def count(self):
        """Take the allocator's own peaks up to now."""
        self._count(self.source.take_peaks())

    def find_cached(self):
        """Before the first node runs: ComfyUI passes over cached nodes without a word."""
        if not self._looked:
            self._looked = True
            for node_id in self.prompt.prompt:
                if self.prompt.cached_outputs(node_id) is not None:
                    self.node_cached(node_id)

    def node_cached(self, node_id):
        self.nodes.setdefault(node_id, Node(node_id)).status = "cached"

    def call_started(self, node_id):
        reading, at = self._boundary()
        if not self.running:
            _add(self.between, self._idle_since, reading)
        node = self.nodes.setdefault(node_id, Node(node_id))
        node.status = "running"
        node.calls += 1
        node.spans.append([at, None])
        for other in {call.node.node_id: call.node for call in self.running}.values():
            if other is not node:
                node.overlapped.add(other.node_id)
                other.overlapped.add(node_id)
        self.running.append(Call(node, reading, self.calls.snapshot(), at))
        self._charge(reading, at, (node,))

    def call_ended(self, node_id):
        call = next((call for call in reversed(self.running) if call.node.node_id == node_id), None)
        if call is None:
            return
        reading, at = self._boundary()
        self._close(call, reading, at)
        if not self.running:
            self._idle_since = reading

    def node_finished(self, node_id):
        if node_id in self.nodes:
            self.nodes[node_id].status = "ran"

    def end(self, outcome):
        """Close what is open. The outcome names the node that failed or was interrupted; an expansion by its maker."""
        self.outcome = outcome
        reading, at = self._boundary()
        if not self.running:
            _add(self.between, self._idle_since, reading)
        for call in list(self.running):
            self._close(call, reading, at)
        for node in self.nodes.values():
            if node.status in ("running", "waiting"):
                named = outcome.node_id in (node.node_id, self.made_by(node.node_id))
                node.status = "ran" if outcome.kind == "success" else outcome.kind if named else "interrupted"
        self.ended_at = at

    def made_by(self, node_id):
        """The node of the prompt as sent whose expansion made this one; None for one that was sent itself."""
        graph = self.prompt.dynprompt
        real = graph.get_real_node_id(node_id) if graph is not None else node_id
        return None if real == node_id else real

    def ids_running(self):
        return tuple(dict.fromkeys(call.node.node_id for call in self.running))

    def _boundary(self):
        """A reading where the set of running nodes is about to change, and the allocator's peaks of what ran till now.
        """
        reading = self.source.read()
        at = self._see(reading, "boundaries")
        self.count()
        return reading, at

    def _count(self, counted):
        """The allocator's own peaks since they were last taken, which was when another set of nodes began to run."""
        at, during = self.seconds, self.ids_running()
        for name, value in counted.items():
            self.peaks[name].see(value, at, during)
            for call in self.running:
                call.node.peaks[name].see(value, at, during)
        if self.outer is not None:
            self.outer._count(counted)

    def _see(self, reading, how):
        at = self._now() - self._start
        self.readings[how] += 1
        self.last = reading if reading.footprint is not None else reading._replace(footprint=self._last_footprint())
        self.series.add(at, reading)
        during = self.ids_running()
        for name in NAMES:
            self.peaks[name].see(getattr(reading, name), at, during)
        self._charge(reading, at, [call.node for call in self.running])
        return at

    def _last_footprint(self):
        return getattr(getattr(self, "last", None), "footprint", None)

    def _charge(self, reading, at, nodes):
        for node in nodes:
            for name in NAMES:
                node.peaks[name].see(getattr(reading, name), at, (node.node_id,))

    def _close(self, call, reading, at):
        self.running.remove(call)
        node = call.node
        node.status = "waiting"
        node.seconds += at - call.at
        next(span for span in node.spans if span[0] == call.at)[1] = at
        _add(node.growth, call.reading, reading)
        for kernel, counts in self.calls.since(call.kernels).items():
            total = node.kernels.setdefault(kernel, [0, 0])
            node.kernels[kernel] = [a + b for a, b in zip(total, counts, strict=True)]


def _add(growth, start, end):
    for name in GROWING:
        before, after = getattr(start, name), getattr(end, name)
        growth[name] = None if None in (before, after, growth[name]) else growth[name] + after - before
