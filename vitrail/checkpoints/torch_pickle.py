"""The pickles of torch.save read as data: their instructions build plain values here, and nothing is ever run.

    stream  --Interpreter.run-->  dicts, lists, tuples, numbers, texts; Views of Storages for tensors

torch.load allocates whatever a file asks for, also with weights_only=True: a bytearray or a tensor of any size. Here
a function that a pickle names is never looked up, and a tensor is only noted down: torch_archive.py makes it of bytes
that the file really has.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.models.checking import is_whole

MOST_OPERATIONS = 1_000_000  # instructions of one pickle; a state dict has about 30 for each tensor
STORAGES: dict[str, torch.dtype] = {
    "torch.FloatStorage": torch.float32, "torch.DoubleStorage": torch.float64, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.ByteStorage": torch.uint8, "torch.CharStorage": torch.int8,
    "torch.ShortStorage": torch.int16, "torch.IntStorage": torch.int32, "torch.LongStorage": torch.int64,
    "torch.BoolStorage": torch.bool, "torch.storage.UntypedStorage": torch.uint8,
}  # fmt: skip
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
TENSORS = {f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
PARAMETERS = {
    "torch.nn.parameter.Parameter",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
}
# What may stand beside the weights in a training script's file, and is passed over.
PASSED_OVER = {
    "torch.device", "torch.Tensor", "torch.serialization._get_layout", "collections.Counter", "_codecs.encode",
    "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("set", "complex", "bytearray")),
}  # fmt: skip
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": lambda: Other("builtins.set"),
}  # fmt: skip
VALUES = {"BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE", "SHORT_BINSTRING"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class ForeignError(ValueError):
    """A value that only somebody's code could make."""


@dataclass(frozen=True)
class Name:
    """A function or a class that a pickle names."""

    text: str


@dataclass(frozen=True)
class Other:
    """A value that is no weight."""

    kind: str


@dataclass(frozen=True)
class Storage:
    """Values that tensors are views of."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class View:
    """A tensor that has not been made."""

    storage: Storage
    offset: Any
    size: Any
    stride: Any
    dtype: torch.dtype


class Interpreter:
    """The instructions that torch.save writes; any other is an error."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}  # all that were mentioned

    def run(self, stream: Any) -> Any:
        """The value of the pickle that the stream stands at; the stream is left behind it.

        Broken ones end in a ValueError, IndexError, KeyError or TypeError.
        """
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if number == MOST_OPERATIONS:
                raise ValueError(f"its pickle has more than {MOST_OPERATIONS:,} instructions")
            self.step(operation.name, argument)
        return self.stack.pop()

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif name in TUPLES:
            stack.append(tuple(self.popped(TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = self.since_mark() if name == "APPENDS" else self.popped(1)
            self.target(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.since_mark() if name == "SETITEMS" else self.popped(2)
            self.target(dict).update(pairs(items))
        elif name == "GLOBAL":
            stack.append(Name(argument.replace(" ", ".")))
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self.popped(2)
            stack.append(called(function, arguments))
        elif name == "BUILD":  # attributes, such as the _metadata of a state dict
            self.popped(1)
            self.target(dict, View, Other)
        elif name == "BINPERSID":
            stack.append(self.mentioned(*self.popped(1)))
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"its pickle has the instruction {name}, which torch does not write")

    def popped(self, count: int) -> list[Any]:
        if len(self.stack) < count + (self.marks[-1] if self.marks else 0):
            raise ValueError("its pickle takes more than it put down")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def since_mark(self) -> list[Any]:
        height = self.marks.pop()
        items = self.stack[height:]
        del self.stack[height:]
        return items

    def target(self, *kinds: type) -> Any:
        """What is on top of the stack, to be changed."""
        if not isinstance(self.stack[-1], kinds):
            raise ValueError(f"its pickle changes a value of type {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def mentioned(self, words: Any) -> Storage:
        """('storage', its class, key, device, count); in old files a sixth, for views of storages, which is None."""
        kind, cls, key, _, count, *view = words
        if kind != "storage" or not isinstance(cls, Name) or not isinstance(key, str) or any(view):
            raise ValueError("its pickle mentions something that is no storage")
        if cls.text not in STORAGES or not is_whole(count) or count < 0:
            raise ValueError(f"a storage of {str(count)[:60]} values, {cls.text[:100]}")
        storage = Storage(key, STORAGES[cls.text], count)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"storage {key[:60]!r} is of two kinds")
        return storage


def pairs(items: list[Any]) -> dict[Any, Any]:
    """k, v, k, v, ... Keys are texts and numbers: the hash of tuples in tuples, deep enough, ends a process."""
    keys = items[::2]
    if len(items) % 2 or not all(isinstance(key, str | int | float) for key in keys):
        raise ValueError("its pickle has a dict with keys that are neither texts nor numbers")
    return dict(zip(keys, items[1::2], strict=True))


def called(function: Any, arguments: Any) -> Any:
    """The value that the function of this name would return."""
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise ValueError("its pickle calls what is no function")
    name = function.text
    if name == "collections.OrderedDict" and not arguments:
        return {}
    if name in TENSORS:
        return view_of(name, *arguments)
    if name in PARAMETERS and arguments:
        return arguments[0]
    if name == "torch._tensor._rebuild_from_type_v2":  # a tensor with attributes
        return called(arguments[0], arguments[2])
    if name == "torch.Size" and arguments:
        return arguments[0]
    if name in PASSED_OVER:
        return Other(name)
    raise ForeignError(f"it holds {name[:100]}, which would have to be run")


def view_of(name: str, storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> View:
    """`more`: whether it has a gradient, hooks; then of version 3 the dtype; then bits, as of a conjugate."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    dtype, bits = storage.dtype, more[2:]
    if name.endswith("_v3"):
        dtype, bits = DTYPES[more[2].text], more[3:]
    if any(bits):
        raise ValueError("a tensor that is a conjugate or a negative")
    return View(storage, offset, size, stride, dtype)
