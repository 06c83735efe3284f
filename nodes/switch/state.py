"""The switches at run time: a listener that sets the workflow layer round each call of a node, and what it saw.

For other features: `conflicts()` and `kernels_taken(node_id)` speak of the prompt that runs, or else of the last one.
"""
import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from .. import execution
from ..prompt import NEVER
from . import kernels
from .governance import (
    NONE,
    SWITCH,
    as_text,
    certain,
    check,
    downstream,
    from_text,
    govern,
    is_switch,
    may_switch_on,
    switched_on,
    written,
)

log = logging.getLogger("metal_kernels")


@dataclass
class Call:
    """A call of a node's function that runs now."""

    node_id: str
    settings: dict
    before: dict


class Session:
    """What is known of one prompt."""

    def __init__(self, prompt):
        self.prompt = prompt
        self.values = {}  # switch id -> values, of the switches that ran in this prompt or were found in its cache
        self.rulings = {}  # node id -> Ruling, of the nodes that have started
        self._known = {}  # node id -> Ruling, under the values known now
        self.calls = []
        self.overlapped = {}  # node id -> ids of the nodes that it overlapped with
        self.spoiled = set()  # ids of the nodes that did not run as their cache keys say, and of those after them
        self.taken = {}  # node id -> {kernel: calls}
        self.held = ExitStack()
        self.standing = switched_on(kernels.modes(), kernels.needed())  # whatever prompt runs
        self.begun = False
        self._looked_at = -1
        self._has_switch = any(node.get("class_type") == SWITCH for node in prompt.prompt.values())

    @property
    def graph(self):
        return self.prompt.dynprompt

    def has_switch(self):
        """Whether there is any, in the prompt or in what expansions have added to it."""
        added = getattr(self.graph, "ephemeral_prompt", {})
        if not self._has_switch and len(added) != self._looked_at:
            self._looked_at = len(added)
            self._has_switch = any(node.get("class_type") == SWITCH for node in added.values())
        return self._has_switch

    def values_of(self, switch_id, node_id):
        """The values of a switch that is upstream of the node: from its widgets; else its own run in this prompt; else
        its cached output. Else None.

        What a switch beyond a lazy input has said counts only if it is written: whether it has run may be due to other
        nodes and prompts, of which the node's cache key knows nothing.

        A switch made by expansion comes too late to have ops registered. What another switch has had registered must
        not help it: the results' cache keys know nothing of that one.
        """
        values = written(self.graph, switch_id, kernels.names())
        if values is None and certain(self.graph, node_id, switch_id, self.prompt.is_lazy):
            values = self.said(switch_id)
        if values is None or self.graph.get_parent_node_id(switch_id) is None:
            return values
        late = self.late(values)
        return {kernel: value for kernel, value in values.items() if kernel not in late}

    def late(self, values):
        """The kernels that these values can't switch on when they come from a switch made by expansion."""
        return switched_on(values, kernels.needed()) - self.standing

    def said(self, switch_id):
        """What the switch said in this prompt, or when its output was cached; None where neither is known."""
        if switch_id not in self.values:
            outputs = self.prompt.cached_outputs(switch_id)
            # One text for each item of a list; items that were blocked upstream have none, the others agree.
            texts = outputs[1] if outputs and len(outputs) > 1 else ()
            said = [values for values in map(from_text, texts or ()) if values is not None]
            if said:
                self.learn(switch_id, said[0])
        return self.values.get(switch_id)

    def learn(self, switch_id, values):
        """The values of a switch, now known; None: no longer."""
        self._known = {}
        if values is None:
            self.values.pop(switch_id, None)
        else:
            self.values[switch_id] = values

    def ruling(self, node_id):
        if not self.has_switch():
            return NONE
        return govern(self.graph, node_id, lambda switch_id: self.values_of(switch_id, node_id), self._known)

    def unsure(self, node_id, switches):
        """Those of the node's switches that do not count, because they are not written and beyond a lazy input."""
        return [switch_id for switch_id in switches if written(self.graph, switch_id, kernels.names()) is None
                and not certain(self.graph, node_id, switch_id, self.prompt.is_lazy)]

    def cache_mark(self, node_id):
        """What the cache key of a node made by expansion lacks: how the node that made it is governed, and whether
        anything upstream of it is spoiled."""
        if node_id in self.spoiled:
            return NEVER
        parent = self.graph.get_parent_node_id(node_id)
        return as_text(self.ruling(parent).settings) if parent is not None else ""

    def spoil(self, node_ids):
        """These nodes run under other settings than the graph says: no later prompt may be served their results."""
        new = downstream(self.graph, node_ids) - self.spoiled
        self.spoiled |= new
        self.prompt.spoil_cache_keys(new)


class Governor(execution.Listener):
    """Sets the workflow layer for each call of a node and takes it away after it; counts what each node took."""

    def __init__(self):
        self._lock = threading.RLock()
        self._sessions = []  # more than one where a node runs a prompt of its own
        self._conflicts = []
        self._taken = {}
        self._applied = {}
        self._modes = None

    @property
    def _session(self):
        return self._sessions[-1] if self._sessions else None

    def wanted(self, prompt):
        modes = kernels.modes()
        if modes != self._modes:
            if self._modes is not None:
                execution.drop_cache()  # results of nodes that no switch governs were made under other defaults
            self._modes = modes
        wanted = bool(kernels.registered()) or any(node.get("class_type") == SWITCH for node in prompt.values())
        if not wanted and self._session is None:
            self._conflicts, self._taken = [], {}  # there are none in this prompt, which is the last one from now on
        return wanted

    def prompt_started(self, prompt):
        names = kernels.names()
        with self._lock:
            session = Session(prompt)
            self._sessions.append(session)
            switches = [node for node in prompt.prompt.values() if node.get("class_type") == SWITCH]
            hold = set().union(*(may_switch_on(node, names, kernels.needed()) for node in switches))
            session.held.enter_context(kernels.hold(hold))

    def node_started(self, node_id):
        with self._lock:
            session = self._session
            if not session.begun:
                session.begun = True
                self._read_cached_switches()
                session.prompt.mark_cache_keys(session.cache_mark)
            if is_switch(session.graph, node_id):
                session.learn(node_id, None)
            else:
                session.rulings[node_id] = session.ruling(node_id)

    def call_started(self, node_id):
        with self._lock:
            session = self._session
            call = Call(node_id, session.rulings.get(node_id, NONE).settings, kernels.taken())
            session.calls.append(call)
            self._apply()

    def call_ended(self, node_id):
        with self._lock:
            session = self._session
            call = next(call for call in reversed(session.calls) if call.node_id == node_id)
            session.calls.remove(call)
            self._count(call)
            self._apply()

    def failure_note(self, node_id):
        """Which kernels ran in the node that failed, so that they can be suspected or cleared; nothing where none did:
        other errors are not this pack's to comment on."""
        with self._lock:
            took = _took(self._session, node_id)
        return f"Metal Kernels that ran in this node: {took}. A Metal Kernels Switch upstream turns them off." if took \
            else ""

    def prompt_ended(self, outcome):
        with self._lock:
            session = self._session
            try:
                for call in session.calls:
                    self._count(call)
                self._conflicts, self._taken = _conflicts(session), session.taken
            finally:
                self._sessions.pop()
                self._apply()
                session.held.close()
        if outcome.kind == "failed":
            log.warning("Metal Kernels: %s", _failure(session, outcome))

    def switch_ran(self, values):
        """From the switch node's function, once for each item when it is mapped over a list.

        Raises ValueError, in one sentence for the person at the graph: an unknown mode, different values in one list, a
        ComfyUI in which nothing can be governed.
        """
        check(values)
        if self._session is None or not self._session.calls:
            if execution.problem() and any(value != "auto" for value in values.values()):
                raise ValueError(f"The Metal Kernels Switch can switch nothing here: {execution.problem()}.")
            if self._session is None:  # nothing is registered that could be switched, or there is no prompt
                _warn_late(values, switched_on(values, kernels.needed()))
            return
        with self._lock:
            session = self._session
            node_id = session.calls[-1].node_id
            if node_id not in session.values:
                session.learn(node_id, values)
            known = session.values[node_id]
            if known != values:
                raise ValueError(
                    f"{session.prompt.name(node_id)} was given a list of different values ({as_text(known)}, then "
                    f"{as_text(values)}): a switch governs with one set of values. Use one switch for each."
                )
            if session.graph.get_parent_node_id(node_id) is not None:
                _warn_late(values, session.late(values))

    def conflicts(self):
        with self._lock:
            if self._session is not None:
                return _conflicts(self._session)
            return list(self._conflicts) if execution.problem() is None else []  # the last one may be long ago

    def kernels_taken(self, node_id):
        with self._lock:
            taken = self._session.taken if self._session is not None else self._taken
            return dict(taken.get(node_id, {}))

    def _read_cached_switches(self):
        """Before any node runs: memory pressure may drop a switch's cached output before the nodes it governs start."""
        session = self._session
        for node_id, node in session.prompt.prompt.items():
            if node.get("class_type") == SWITCH:
                session.said(node_id)

    def _apply(self):
        """One layer for the whole process: calls that overlap under different settings get the defaults, to their end.
        """
        session = self._session
        running = session.calls if session is not None else ()
        calls = [call for call in running if not is_switch(session.graph, call.node_id)]
        if any(call.settings != calls[0].settings for call in calls[1:]):
            session.spoil([call.node_id for call in calls if call.settings])
            for call in calls:
                call.settings = {}
                others = {other.node_id for other in calls} - {call.node_id}
                session.overlapped.setdefault(call.node_id, set()).update(others)
        self._set(calls[0].settings if calls else {})

    def _set(self, settings):
        if settings != self._applied:
            kernels.set_workflow(settings)
            self._applied = settings

    def _count(self, call):
        taken = self._session.taken.setdefault(call.node_id, {})
        for kernel, calls in kernels.taken().items():
            new = calls - call.before.get(kernel, 0)
            if new > 0:
                taken[kernel] = taken.get(kernel, 0) + new


def _warn_late(values, late):
    if late:
        log.warning(
            "Metal Kernels: a switch that was made while the graph ran says %s; ops are registered before a graph "
            "runs, so this does nothing. Put a switch that says so into the graph itself.",
            as_text({kernel: value for kernel, value in values.items() if kernel in late}))


def _conflicts(session):
    if session.graph is None:
        return []
    found = []
    for node_id in sorted(session.graph.all_node_ids()) if session.has_switch() else ():
        if is_switch(session.graph, node_id):
            continue
        ruling = session.rulings.get(node_id) or session.ruling(node_id)
        if ruling.conflict:
            found.append(_conflict(session, node_id, "distance", ruling.switches, "is equally near to",
                                   f"which disagree about {', '.join(ruling.conflict)}: there the default applies"))
        unsure = session.unsure(node_id, ruling.switches)
        if unsure:
            found.append(_conflict(session, node_id, "lazy", unsure, "does not follow",
                                   "whose values come by a link and which is beyond a lazy input: it may never run"))
    for node_id, others in session.overlapped.items():
        found.append(_conflict(session, node_id, "overlap", sorted(others), "ran at the same time as",
                               "under different switches: the defaults apply to it"))
    return found


def _conflict(session, node_id, kind, others, relation, reason):
    name = session.prompt.name
    text = f"{name(node_id)} {relation} {', '.join(map(name, others))}, {reason}."
    return {"node": node_id, "name": name(node_id), "kind": kind, "others": list(others), "text": text}


def _took(session, node_id):
    """"pad (3 calls), softmax (1 call)": the kernels that the node ran, those of the nodes that it expanded into
    included; "" for none."""
    total = {}
    for taker, taken in session.taken.items():
        if taker == node_id or (session.graph is not None and session.graph.get_real_node_id(taker) == node_id):
            for kernel, calls in taken.items():
                total[kernel] = total.get(kernel, 0) + calls
    return ", ".join(f"{kernel} ({calls} call{'' if calls == 1 else 's'})" for kernel, calls in sorted(total.items()))


def _failure(session, outcome):
    """The log's line."""
    name = session.prompt.name(outcome.node_id) if outcome.node_id is not None else "the prompt"
    took = _took(session, outcome.node_id) or "none"
    return f"{name} failed. Kernels of this pack that ran in it: {took}."


governor = Governor()
execution.add_listener(governor)


def conflicts():
    """Nodes of the prompt that runs, or else of the last one, that get the defaults because switches disagree.

    JSON-serialisable: node, name, kind ("distance": the nearest switches are equally near; "overlap": async nodes ran
    at the same time; "lazy": a switch that may never run does not count), others (ids of those switches or nodes), text
    (one sentence).
    """
    return governor.conflicts()


def kernels_taken(node_id):
    """kernel -> number of calls that it ran for the node, in the prompt that runs or else in the last one.

    Counted round the node's own calls: async nodes that run at the same time are counted together.
    """
    return governor.kernels_taken(node_id)
