"""Files of torch.save, read as data: nothing in them is ever executed.

    zip   NAME/data.pkl, NAME/data/KEY: the bytes of a storage; every member stored, with a CRC-32
    old   five pickles (magic number, protocol, system, content, keys); then for each key the number of its values, 8
          bytes, and the values. There is no checksum. Torch wrote this until 1.6

    path  --read_torch_file-->  content with TensorViews  --TensorView.tensor-->  tensors, views of the file

torch.load allocates whatever a file asks for, even with weights_only=True: a bytearray or a tensor of any size. Here
the instructions of a pickle build plain values, a function that it names is never looked up, and a tensor is only
recorded as a TensorView, until it is made from bytes that the file really has.
"""

from __future__ import annotations

import io
import math
import mmap
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.npz import stored_bytes
from vitrail.runtime.log import note

ZIP = b"PK\x03\x04"
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of old files
MAX_DIMENSIONS = 16  # of a tensor
MAX_OPERATIONS = 1_000_000  # instructions of one pickle; a state dict has about 30 for each tensor
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
# Values that may stand beside the weights in a training script's file, and are ignored.
IGNORED = {
    "torch.device", "torch.Tensor", "torch.serialization._get_layout", "collections.Counter", "_codecs.encode",
    "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("set", "complex", "bytearray")),
}  # fmt: skip
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": lambda: Other(),
}  # fmt: skip
VALUES = {"BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE", "SHORT_BINSTRING"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(str):
    """A function or a class that a pickle names."""


class Other:
    """A value that is not a weight."""


@dataclass(frozen=True)
class Storage:
    """Values that tensors are views of, read when one of these is made."""

    key: str
    dtype: torch.dtype
    count: int
    read: Callable[[str], memoryview] = field(compare=False)  # the bytes behind a key

    @cached_property
    def values(self) -> Tensor:
        content, size = self.read(self.key), self.dtype.itemsize
        if len(content) != self.count * size:
            raise ValueError(f"a storage of {self.count:,} values that has {len(content):,} bytes")
        raw = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        # In old files values may not begin at a multiple of their size: those are copied.
        return (raw if raw.data_ptr() % size == 0 else raw.clone()).view(self.dtype)


@dataclass(frozen=True)
class TensorView:
    """A tensor that has not been made yet."""

    storage: Storage
    offset: Any
    size: Any
    stride: Any
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """Return the tensor, not a copy; raise ValueError if the file does not hold all of it."""
        offset, size, stride = self.offset, self.size, self.stride
        if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)):
            raise ValueError("a tensor with more sizes than strides, or fewer")
        # A value that is not checked yet is never put into words: a small pickle can mean an endless text.
        if len(size) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
            raise ValueError("a tensor whose shape is not a few whole numbers of at least 0")
        values = self.storage.values.view(self.dtype)
        if not math.prod(size):
            return values.new_empty(size)
        if offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= len(values):
            raise ValueError(f"a tensor of shape {str(size)[:60]} with {len(values):,} values behind it")
        return values.as_strided(size, stride, offset)


def read_torch_file(path: Path) -> Any:
    """Return the content of a torch file; anything else raises an exception of zipfile or of Interpreter."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private to this process
        if mapped[: len(ZIP)] != ZIP:
            return read_old(mapped)
        with zipfile.ZipFile(file) as archive:
            return read_zip(archive.infolist(), mapped, path)


def read_zip(members: list[zipfile.ZipInfo], mapped: mmap.mmap, path: Path) -> Any:
    by_name = {m.filename: m for m in members}
    if len(by_name) < len(members):
        raise ValueError("two of its members have the same name")
    if odd := [m.filename for m in members if m.compress_type != zipfile.ZIP_STORED or m.flag_bits & 1]:
        raise ValueError(f"its member {odd[0][:60]!r} is compressed or encrypted, which torch never does")
    if sum(m.file_size for m in members) > len(mapped):
        raise ValueError("its members overlap")
    pickles = [name for name in by_name if f"/{name}".endswith("/data.pkl")]
    prefix = pickles[0].removesuffix("data.pkl") if len(pickles) == 1 else ""
    if len(pickles) != 1 or f"{prefix}constants.pkl" in by_name:  # which a TorchScript program has
        raise ValueError("it is a zip, but not one that torch.save makes")
    has_sums = any(m.CRC for m in members)  # torch.serialization.set_crc32_options(False) writes zeros
    if not has_sums:
        note(f"{path.name} was written without checksums: damage to its weights cannot be detected")

    def content(name: str) -> memoryview:
        if name not in by_name:
            raise ValueError(f"its member {name[:60]!r} is missing")
        try:
            return stored_bytes(mapped, by_name[name], check_sum=has_sums)
        except ValueError as error:
            raise ValueError(f"its member {name[:60]!r} {error}") from error

    if f"{prefix}byteorder" in by_name and bytes(content(f"{prefix}byteorder")) != b"little":
        raise ValueError("its numbers are not little-endian")
    return Interpreter(lambda key: content(f"{prefix}data/{key}")).run(io.BytesIO(content(pickles[0])))


def read_old(mapped: mmap.mmap) -> Any:
    places: dict[str, slice] = {}
    interpreter = Interpreter(lambda key: memoryview(mapped)[places[key]])
    if [interpreter.run(mapped), interpreter.run(mapped)] != [MAGIC, PROTOCOL]:
        raise ValueError("its bytes are of another kind")
    system, value, keys = (interpreter.run(mapped) for _ in range(3))
    if system["little_endian"] is not True:
        raise ValueError("its numbers are not little-endian")
    at = mapped.tell()
    if not all(isinstance(key, str) for key in keys):  # hashing deeply nested tuples can crash
        raise ValueError("its storages have keys that are not strings")
    for key in keys:
        storage = interpreter.storages[key]
        if int.from_bytes(mapped[at : at + 8], "little") != storage.count:
            raise ValueError(f"storage {key[:60]!r} has another number of values than stated")
        start, at = at + 8, at + 8 + storage.count * storage.dtype.itemsize
        places[key] = slice(start, at)
    if at > len(mapped):
        raise ValueError(f"it ends {at - len(mapped):,} bytes too early")
    return value


class Interpreter:
    """Interprets the instructions that torch.save writes; any other is an error."""

    def __init__(self, read: Callable[[str], memoryview]) -> None:
        self.read = read  # the bytes of a storage
        self.storages: dict[str, Storage] = {}  # all that were mentioned

    def run(self, stream: Any) -> Any:
        """Return the value of the pickle at the position of the stream, which is left behind it.

        A broken pickle raises ValueError, IndexError, KeyError or TypeError.
        """
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if number == MAX_OPERATIONS:
                raise ValueError(f"its pickle has more than {MAX_OPERATIONS:,} instructions")
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
            stack.append(tuple(self.pop_to_mark()))
        elif name in TUPLES:
            stack.append(tuple(self.pop(TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = self.pop_to_mark() if name == "APPENDS" else self.pop(1)
            self.target(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.pop_to_mark() if name == "SETITEMS" else self.pop(2)
            self.target(dict).update(pairs(items))
        elif name == "GLOBAL":
            stack.append(Name(argument.replace(" ", ".")))
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self.pop(2)
            stack.append(call(function, arguments))
        elif name == "BUILD":  # attributes, such as the _metadata of a state dict
            self.pop(1)
            self.target(dict, TensorView, Other)
        elif name == "BINPERSID":
            stack.append(self.note_storage(*self.pop(1)))
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"its pickle has the instruction {name}, which torch does not write")

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count + (self.marks[-1] if self.marks else 0):
            raise ValueError("its pickle takes more values than it has stored")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def pop_to_mark(self) -> list[Any]:
        height = self.marks.pop()
        items = self.stack[height:]
        del self.stack[height:]
        return items

    def target(self, *kinds: type) -> Any:
        """Return the top of the stack, which will be changed."""
        if not isinstance(self.stack[-1], kinds):
            raise ValueError(f"its pickle changes a value of type {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def note_storage(self, words: Any) -> Storage:
        """Read ('storage', class, key, device, count); old files have a sixth (a view of a storage), None."""
        kind, cls, key, _, count, *view = words
        if kind != "storage" or not isinstance(cls, Name) or not isinstance(key, str) or any(view):
            raise ValueError("its pickle refers to something that is not a storage")
        if cls not in STORAGES or type(count) is not int or count < 0:
            raise ValueError(f"a storage of the kind {cls[:100]}, or not of a whole number of values")
        storage = Storage(key, STORAGES[cls], count, self.read)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"storage {key[:60]!r} is of two kinds")
        return self.storages[key]


def pairs(items: list[Any]) -> dict[Any, Any]:
    """Return a dict of k, v, k, v, ... Only strings and numbers are keys: hashing deeply nested tuples can crash."""
    keys = items[::2]
    if len(items) % 2 or not all(isinstance(key, str | int | float) for key in keys):
        raise ValueError("its pickle has a dict with keys that are neither strings nor numbers")
    return dict(zip(keys, items[1::2], strict=True))


def call(function: Any, arguments: Any) -> Any:
    """Return the value that the function of this name would return."""
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise ValueError("its pickle calls something that is not a function")
    name = str(function)
    if name == "collections.OrderedDict" and not arguments:
        return {}
    if name in TENSORS:
        return make_view(name, *arguments)
    if name in PARAMETERS and arguments:
        return arguments[0]
    if name == "torch._tensor._rebuild_from_type_v2":  # a tensor with attributes
        return call(arguments[0], arguments[2])
    if name == "torch.Size" and arguments:
        return arguments[0]
    if name in IGNORED:
        return Other()
    raise ValueError(f"it holds {name[:100]}, which would have to be executed")


def make_view(name: str, storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> TensorView:
    """Record a tensor. `more`: requires_grad, hooks; in version 3 the dtype; then flags such as conjugate."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    dtype, bits = storage.dtype, more[2:]
    if name.endswith("_v3"):
        if not isinstance(more[2], Name):
            raise ValueError("a tensor without a dtype")
        dtype, bits = DTYPES[more[2]], more[3:]
    if any(bits):
        raise ValueError("a tensor that is a conjugate or a negative")
    return TensorView(storage, offset, size, stride, dtype)
