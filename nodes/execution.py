"""The one file that hooks ComfyUI's executor. Features register a `Listener`; nothing else here is theirs to call.

Three seams, each probed for before it is touched, each put back by `uninstall`:

* `execution.PromptExecutor.execute_async` surrounds a prompt: its `finally` is exact on success, failure and interrupt.
* `comfy_execution.progress.ProgressRegistry.__init__`: ComfyUI makes one for each prompt. It carries the graph, and a
  ProgressHandler in it hears of node starts, sampler steps and node ends.
* `comfy_execution.utils.CurrentNodeContext` is entered round every call of a node's function: the lazy check, each item
  of a list, an async node's task. A ProgressHandler hears no end of a node that fails, waits or expands; this has one.

The error of a node that fails is told to the browser through the executor's own `add_message`; for a prompt that a
listener wants it is wrapped on that executor object alone, so that the error can name what took part.

A prompt that no listener wants runs as without the pack: no handler is registered, and a hook that meets such a prompt
reads one context variable. Other packs wrap the same seams: ours call on, and are left in the chain, asleep, when
`uninstall` finds somebody else's wrapper over them.
"""
import asyncio
import contextlib
import functools
import importlib
import inspect
import logging
import threading
from contextvars import ContextVar

from .listener import Listener, Outcome
from .prompt import Prompt

__all__ = ["Listener", "Outcome", "Prompt", "add_listener", "current", "drop_cache", "install", "problem",
           "remove_listener", "uninstall"]

log = logging.getLogger("metal_kernels")

_running = ContextVar("metal_kernels_prompt", default=None)
_lock = threading.RLock()
_hooks = []
_listeners = []
_complained = set()
_state = {"problem": "the hooks are not installed", "drop_cache": False}


def add_listener(listener):
    """From the next prompt on."""
    with _lock:
        if listener not in _listeners:
            _listeners.append(listener)


def remove_listener(listener):
    """From the next prompt on."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)


def drop_cache():
    """Have the next prompt begin with an empty execution cache: something that no cache key knows of has changed."""
    _state["drop_cache"] = True


def current():
    """The `Prompt` that runs in this context and that some listener wants, or None."""
    run = _running.get()
    return run.prompt if run is not None else None


def problem():
    """None, or one sentence: why features that follow a prompt can't work in this ComfyUI."""
    return _state["problem"]


def install():
    """Hook the executor, once. Changes nothing and sets `problem()` where a seam is missing."""
    with _lock:
        if _hooks:
            return
        try:
            seams = [(*_seam(path, name, parameters), wrap) for path, name, parameters, wrap in _SEAMS]
        except _Missing as missing:
            _state["problem"] = f"this ComfyUI's executor lacks {missing}, which Metal Kernels needs to follow a prompt"
            return
        for owner, name, wrap in seams:
            hook = _Hook(owner, name)
            hook.put(wrap(hook.original, hook))
            _hooks.append(hook)
        _state["problem"] = None


def uninstall():
    """Leave ComfyUI's attributes as they were found. A wrapper that another pack has wrapped since stays, asleep."""
    with _lock:
        while _hooks:
            _hooks.pop().remove()
            drop_cache()  # what runs before they are in again, runs without the kernels
        _state["problem"] = "the hooks are not installed"


class _Missing(Exception):
    """Names the capability."""


def _seam(path, name, parameters):
    module, _, attribute = path.rpartition(".")
    try:
        owner = getattr(importlib.import_module(module), attribute)
        signature = inspect.signature(vars(owner)[name])
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        raise _Missing(f"{path}.{name}") from None
    missing = sorted(parameters - set(signature.parameters))
    if missing and not _takes_anything(signature):
        raise _Missing(f"{path}.{name}({', '.join(missing)})")
    return owner, name


def _takes_anything(signature):
    """Another pack's wrapper: (*args, **kwargs), and no word of what it wraps."""
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())


class _Hook:
    """One attribute of ours on one of ComfyUI's classes."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name
        self.original = vars(owner)[name]
        self.wrapper = None
        self.awake = True

    def put(self, wrapper):
        self.wrapper = wrapper
        setattr(self.owner, self.name, wrapper)

    def remove(self):
        self.awake = False
        if vars(self.owner).get(self.name) is self.wrapper:
            setattr(self.owner, self.name, self.original)


def _around_prompt(original, hook):
    signature = inspect.signature(original)
    if _takes_anything(signature):
        signature = inspect.signature(_execute_async)

    @functools.wraps(original)
    async def execute_async(executor, *args, **kwargs):
        run = _begin(executor, signature, args, kwargs) if hook.awake else None
        if run is None:
            return await original(executor, *args, **kwargs)
        token = _running.set(run)
        error = None
        try:
            run.tell("prompt_started", run.prompt)
            with _notes_on_failures(executor, run):
                return await original(executor, *args, **kwargs)
        except BaseException as caught:
            error = caught
            raise
        finally:
            _running.reset(token)
            run.end(_outcome(executor, error, run.note))

    return execute_async


def _around_registry(original, hook):
    @functools.wraps(original)
    def __init__(registry, *args, **kwargs):
        original(registry, *args, **kwargs)
        run = _running.get()
        if run is not None and hook.awake:
            try:
                run.attach(registry)
            except Exception:
                _lost()

    return __init__


def _around_call_start(original, hook):
    @functools.wraps(original)
    def __enter__(context):
        result = original(context)
        run = _running.get()
        if run is not None and hook.awake:
            run.call_started(context)
        return result

    return __enter__


def _around_call_end(original, hook):
    @functools.wraps(original)
    def __exit__(context, *error):
        run = _running.get()
        if run is not None:  # asleep or not: what was started is ended
            run.call_ended(context)
        return original(context, *error)

    return __exit__


async def _execute_async(self, prompt, prompt_id, extra_data=None, execute_outputs=None):
    """ComfyUI's signature, for reading the arguments where another pack's wrapper hides it."""


_SEAMS = (
    ("execution.PromptExecutor", "execute_async", {"prompt", "prompt_id", "extra_data"}, _around_prompt),
    ("comfy_execution.progress.ProgressRegistry", "__init__", {"prompt_id", "dynprompt"}, _around_registry),
    ("comfy_execution.utils.CurrentNodeContext", "__enter__", set(), _around_call_start),
    ("comfy_execution.utils.CurrentNodeContext", "__exit__", set(), _around_call_end),
)


def _begin(executor, signature, args, kwargs):
    """A run for the listeners that want this prompt; None when none does. Never raises."""
    try:
        given = signature.bind(executor, *args, **kwargs).arguments
        prompt = Prompt(given["prompt_id"], given["prompt"], given.get("extra_data") or {}, executor)
        with _lock:
            listeners = [listener for listener in _listeners if _ask(listener, prompt.prompt)]
        if _state["drop_cache"]:
            _state["drop_cache"] = False
            executor.reset()
        _state["problem"] = None
        return _Run(prompt, listeners) if listeners else None
    except Exception:
        _lost()
        return None


def _lost():
    """This prompt runs on unfollowed; until one can be followed again, features say so."""
    _state["problem"] = "this prompt can't be followed, the log says why"
    log.exception("Metal Kernels: this prompt can't be followed")


def _ask(listener, prompt):
    try:
        return listener.wanted(prompt)
    except Exception:
        _complain(listener, "wanted")
        return False


def _complain(listener, event):
    key = (type(listener), event)
    if key not in _complained:
        _complained.add(key)
        log.exception("Metal Kernels: %s.%s failed; said once", type(listener).__name__, event)


@contextlib.contextmanager
def _notes_on_failures(executor, run):
    """While it is entered, an error that the executor tells the browser ends with the listeners' notes.

    An attribute on this one executor: its class, and the exception itself, which others may catch, stay as they are.
    """
    original = getattr(executor, "add_message", None)
    if original is None or "add_message" in vars(executor):  # somebody else's: left alone
        yield
        return

    @functools.wraps(original)
    def add_message(event, data, *args, **kwargs):
        if event == "execution_error":
            data = run.annotated(data)
        return original(event, data, *args, **kwargs)

    executor.add_message = add_message
    try:
        yield
    finally:
        vars(executor).pop("add_message", None)


def _outcome(executor, error, note=""):
    """Read from the messages that the executor sent to the browser; an error that left the executor says more.

    note  what this file added to the message.
    """
    if isinstance(error, asyncio.CancelledError):
        return Outcome("interrupted")
    if error is not None:
        return Outcome("failed", message=str(error) or type(error).__name__)
    for event, data in reversed(getattr(executor, "status_messages", ())):
        if event == "execution_interrupted":
            return Outcome("interrupted", data.get("node_id"))
        if event == "execution_error":
            message = str(data.get("exception_message", "")).removesuffix(note)
            return Outcome("failed", data.get("node_id"), message.strip())
    return Outcome("success")


class _Run:
    """One prompt and the listeners that want it."""

    def __init__(self, prompt, listeners):
        self.prompt = prompt
        self.listeners = listeners
        self.started = set()
        self.calls = {}
        self.note = ""
        self.over = False

    def tell(self, event, *args):
        for listener in self.listeners:
            self._tell(listener, event, args)

    def tell_end(self, event, *args):
        for listener in reversed(self.listeners):
            self._tell(listener, event, args)

    @staticmethod
    def _tell(listener, event, args):
        try:
            return getattr(listener, event)(*args)
        except Exception:
            _complain(listener, event)

    def annotated(self, data):
        """The data of an execution_error with the listeners' notes behind its message."""
        notes = [self._tell(listener, "failure_note", (data.get("node_id"),)) for listener in self.listeners]
        self.note = "".join(f"\n{note}" for note in notes if note)
        if not self.note or "exception_message" not in data:
            return data
        return {**data, "exception_message": str(data["exception_message"]).rstrip() + self.note}

    def attach(self, registry):
        if registry.prompt_id != self.prompt.prompt_id:
            return
        self.prompt.dynprompt = registry.dynprompt
        registry.register_handler(_handler(self))

    def node_started(self, node_id):
        if not self.over:
            self.started.add(node_id)
            self.tell("node_started", node_id)

    def node_progress(self, node_id, value, maximum):
        if not self.over:
            self.tell("node_progress", node_id, value, maximum)

    def node_finished(self, node_id):
        if self.over:
            return
        if node_id in self.started:
            self.started.discard(node_id)
            self.tell_end("node_finished", node_id)
        else:
            self.tell("node_cached", node_id)

    def call_started(self, context):
        # Before a node has started, the calls made for it are fingerprints, not its work.
        node_id = getattr(getattr(context, "context", None), "node_id", None)
        if not self.over and node_id in self.started:
            self.calls[id(context)] = node_id
            self.tell("call_started", node_id)

    def call_ended(self, context):
        node_id = self.calls.pop(id(context), None)
        if not self.over and node_id is not None:
            self.tell_end("call_ended", node_id)

    def end(self, outcome):
        self.over = True
        self.tell_end("prompt_ended", outcome)


def _handler(run):
    from comfy_execution.progress import ProgressHandler

    class Handler(ProgressHandler):
        def __init__(self):
            super().__init__("metal_kernels")

        def start_handler(self, node_id, *_):
            run.node_started(node_id)

        def update_handler(self, node_id, value, max_value, *_, **__):
            run.node_progress(node_id, value, max_value)

        def finish_handler(self, node_id, *_):
            run.node_finished(node_id)

    return Handler()
