"""`from comfy_api.latest import ComfyExtension, io, ui`, as small as it can be."""
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import SimpleNamespace


class ComfyExtension(ABC):
    async def on_load(self):  # noqa: B027  (as in ComfyUI: overriding it is optional)
        """Called once after the pack is imported, before the node list is asked for."""

    @abstractmethod
    async def get_node_list(self):
        """The node classes."""


@dataclass
class _Input:
    id: str
    display_name: str = None
    optional: bool = False
    tooltip: str = None


@dataclass
class _ComboInput(_Input):
    options: list = field(default_factory=list)
    default: str = None
    io_type = "COMBO"


@dataclass
class _StringInput(_Input):
    default: str = None
    multiline: bool = False
    io_type = "STRING"


@dataclass
class _NumberInput(_Input):
    default: float = None
    min: float = None
    max: float = None
    step: float = None
    advanced: bool = None


@dataclass
class _FloatInput(_NumberInput):
    round: float = None
    io_type = "FLOAT"


@dataclass
class _IntInput(_NumberInput):
    io_type = "INT"


@dataclass
class _BooleanInput(_Input):
    default: bool = None
    io_type = "BOOLEAN"


class _MultiTypeInput(_Input):
    """One input of several types; its io_type is theirs, joined by commas."""

    def __init__(self, id, types, **options):
        super().__init__(id, **options)
        self.io_type = ",".join(one.io_type for one in types)


@dataclass(frozen=True)
class _Template:
    template_id: str


@dataclass
class _MatchInput(_Input):
    template: _Template = None
    io_type = "COMFY_MATCHTYPE_V3"


@dataclass
class _Output:
    id: str = None
    display_name: str = None
    tooltip: str = None


def _type(io_type):
    return SimpleNamespace(io_type=io_type, Input=type("Input", (_Input,), {"io_type": io_type}),
                           Output=type("Output", (_Output,), {"io_type": io_type}))


@dataclass
class _MatchOutput(_Output):
    template: _Template = None
    io_type = "COMFY_MATCHTYPE_V3"


@dataclass
class _Schema:
    node_id: str
    display_name: str = None
    category: str = "sd"
    inputs: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    hidden: list = field(default_factory=list)
    description: str = ""
    search_aliases: list = field(default_factory=list)
    is_output_node: bool = False
    is_experimental: bool = False
    not_idempotent: bool = False


class _ComfyNode:
    @classmethod
    def GET_SCHEMA(cls):  # noqa: N802  (ComfyUI's name)
        return cls.define_schema()


class _NodeOutput:
    def __init__(self, *args, ui=None, expand=None, block_execution=None):
        self.args, self.ui, self.expand, self.block_execution = args, ui, expand, block_execution

    @property
    def result(self):
        return self.args or None


class _PreviewText:
    def __init__(self, value):
        self.value = value

    def as_dict(self):
        return {"text": (self.value,)}


class _PreviewImage:
    """ComfyUI's writes temp files and names them; this one keeps the tensor."""

    def __init__(self, image, animated=False, cls=None):
        self.image, self.animated = image, animated

    def as_dict(self):
        return {"images": [{"tensor": self.image}], "animated": (self.animated,)}


io = SimpleNamespace(ComfyNode=_ComfyNode, Schema=_Schema, NodeOutput=_NodeOutput,
                     AnyType=_type("*"))
for _name, _input in (("String", _StringInput), ("Float", _FloatInput), ("Int", _IntInput), ("Boolean", _BooleanInput)):
    _io_type = _type(_name.upper())
    _io_type.Input = _input
    setattr(io, _name, _io_type)
for _name in ("Image", "Latent", "Mask", "Vae", "Model", "Clip"):
    setattr(io, _name, _type(_name.upper()))
io.MultiType = SimpleNamespace(Input=_MultiTypeInput)
io.Combo = SimpleNamespace(Input=_ComboInput)
io.MatchType = SimpleNamespace(Template=_Template, Input=_MatchInput, Output=_MatchOutput)
ui = SimpleNamespace(PreviewText=_PreviewText, PreviewImage=_PreviewImage)
