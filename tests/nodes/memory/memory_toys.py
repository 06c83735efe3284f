"""A memory source whose numbers are set by hand, a clock that stands still, kernel counters to count up."""
from contextlib import contextmanager
from types import SimpleNamespace

MIB = 2**20


class Toys:
    """The meter's source, clock and `calls` in one object. Numbers are in MiB here."""

    footprint_kind = "toy footprint"
    interval = 3600.0  # the thread takes no reading by itself

    def __init__(self, memory):
        self.memory = memory
        self.current, self.reserved, self.driver, self.footprint = 1, 2, 3, 10
        self.counts_peaks, self.obstacle, self.trouble = True, None, None
        self.peaks = {"current": 1, "reserved": 2}
        self.time, self.reads, self.made = 0.0, 0, 0
        self.taken, self.passed, self.watcher, self.pauser = {"pad": 0}, {"pad": 0}, None, None
        self.stock, self.states = {"pad": "stock keeps memory"}, {"pad": ("patched", "this torch needs it")}
        self.has_reserved = True

    # The source.

    def make_source(self):
        self.made += 1
        return self

    def set(self, **numbers):
        """Numbers in MiB, as the allocator would see them: its own peaks follow."""
        vars(self).update(numbers)
        for name in self.peaks:
            self.peaks[name] = max(self.peaks[name], getattr(self, name))

    def read(self, with_footprint=True):
        if self.trouble:
            raise self.trouble
        self.reads += 1
        reserved = self.reserved * MIB if self.has_reserved else None
        outside = (self.driver - self.reserved) * MIB if self.has_reserved else None
        return self.memory.source.Reading(self.current * MIB, reserved, self.driver * MIB, outside,
                                          self.footprint * MIB if with_footprint else None)

    def glance(self):
        return self.current * MIB, self.driver * MIB

    def take_peaks(self):
        if not self.counts_peaks or not self.has_reserved:
            return {}
        found = {name: value * MIB for name, value in self.peaks.items()}
        self.peaks = {"current": self.current, "reserved": self.reserved}
        return found

    def recommended_maximum(self):
        return 1024 * MIB

    # The kernels' calls.

    def snapshot(self):
        return {name: (self.taken[name], self.passed[name]) for name in self.taken}

    def since(self, before):
        found = {name: (self.taken[name] - before[name][0], self.passed[name] - before[name][1]) for name in before}
        return {name: counts for name, counts in found.items() if any(counts)}

    def leaking(self):
        return self.stock

    def state(self, name):
        return self.states[name]

    @contextmanager
    def watched(self, watcher, pauser):
        self.watcher, self.pauser = watcher, pauser
        try:
            yield
        finally:
            self.watcher = self.pauser = None

    # Sessions.

    def session(self, outer=None, **class_types):
        return self.memory.session.Session(Prompt(class_types), lambda: self.time, self, self, outer, 0.01)

    def run(self, session, node_id, seconds=1.0, **numbers):
        """One call of a node that ends with these numbers."""
        session.call_started(node_id)
        self.set(**numbers)
        self.time += seconds
        session.call_ended(node_id)
        session.node_finished(node_id)

    def data(self, session, outcome=None):
        """report.collect's data; ended with `outcome` ("success") if that is given."""
        if outcome is not None:
            session.end(outcome if not isinstance(outcome, str) else ended(outcome))
        return self.memory.report.collect(session)


def ended(kind, node_id=None, message=""):
    return SimpleNamespace(kind=kind, node_id=node_id, message=message)


class Prompt:
    """As execution.Prompt: nodes by id with a class each; `made_by`: expanded node -> its maker."""

    prompt_id = "p1"

    def __init__(self, class_types, **made_by):
        self.prompt = {node_id: {"class_type": name, "inputs": {}} for node_id, name in class_types.items()}
        self.extra_data = {"client_id": "browser"}
        self.dynprompt = SimpleNamespace(get_real_node_id=lambda node_id: made_by.get(node_id, node_id))
        self.made_by, self.cached = made_by, {}

    def node(self, node_id):
        return self.prompt.get(node_id, {})

    def cached_outputs(self, node_id):
        return self.cached.get(node_id)

    def name(self, node_id):
        return f"{self.node(node_id).get('class_type', 'node')} (#{node_id})"
