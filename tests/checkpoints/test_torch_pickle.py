"""Files of torch.save as data: what torch writes is read, and attacks are refused before they cost anything."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.checkpoints import torch_files, torch_pickle
from vitrail.errors import CheckpointError

TENSORS = {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4)}
HUGE = 1 << 31


def saved(content: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


def with_attribute() -> Tensor:
    w = torch.randn(3)
    w.remark = "of a training script"  # type: ignore[attr-defined]
    return w


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: TENSORS,
    "a module's": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).state_dict(),
    "parameters": lambda: {"a": nn.Parameter(torch.randn(3, 2)), "b": nn.Parameter(torch.randn(2), False)},
    "transposed": lambda: {"a": torch.randn(4, 3).T, "b": torch.randn(2, 3, 4).permute(2, 0, 1)},
    "a part of a storage": lambda: {"a": torch.randn(100)[10:20], "b": torch.randn(6, 6)[1:5, 2:4]},
    "shared": lambda: (lambda w: {"a": w[:3], "b": w[3:], "padding": torch.randn(50)})(torch.randn(7)),
    "other precisions": lambda: {
        "half": torch.randn(5).half(), "bf16": torch.randn(5).bfloat16(), "double": torch.randn(5).double(),
    },
    "with attributes": lambda: {"a": with_attribute()},
    "a number, and nothing": lambda: {"scale": torch.tensor(2.5), "none": torch.zeros(0, 3)},
    "ordered": lambda: collections.OrderedDict(TENSORS),
}  # fmt: skip


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_torch_writes_is_read_as_torch_reads_it(kind: str, zipped: bool, tmp_path: Path) -> None:
    path = saved(KINDS[kind](), tmp_path / "a.pth", zipped)
    theirs = {name: w.detach() for name, w in torch.load(path, weights_only=True).items()}
    assert same(torch_files.read_tensors(path), theirs)


def test_eight_bits(tmp_path: Path) -> None:
    content = {"a": torch.randn(5).to(torch.float8_e4m3fn)}
    read = torch_files.read_tensors(saved(content, tmp_path / "a.pth"))["a"]
    assert read.dtype == torch.float8_e4m3fn
    assert torch.equal(read.float(), content["a"].float())


@pytest.mark.parametrize("zipped", [True, False])
def test_what_a_training_script_keeps_beside_the_weights(zipped: bool, tmp_path: Path) -> None:
    state = {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4, 3)}}
    content = {
        "state_dict": TENSORS,
        "optimizer": {
            "state": state,
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1]}],
        },
        "epoch": 3,
        "best": 0.5,
        "seen": {1, 2},
        "history": [1.5, -2, 2**40, None, True, b"bytes", ("a", ("b",))],
        "rng": torch.get_rng_state(),
        "dtype": torch.float16,
        "size": torch.Size([3]),
        "device": torch.device("cpu"),
    }
    assert same(torch_files.read_tensors(saved(content, tmp_path / "a.pth", zipped)), TENSORS)


def test_written_without_checksums(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        saved(TENSORS, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(torch_files.read_tensors(tmp_path / "a.pth"), TENSORS)
    assert "without checksums" in caplog.text


def test_every_changed_byte_of_weights_is_found(tmp_path: Path) -> None:
    path = saved(TENSORS, tmp_path / "a.pth")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        contents = [archive.read(name) for name in archive.namelist() if "/data" in name]
    for content in contents:
        start = whole.index(content)
        for at in range(start, start + len(content), 5):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(CheckpointError, match="checksum"):
                torch_files.read_tensors(path)


# --- attacks --------------------------------------------------------------------------------------


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class Mention:
    """Pickles as a persistent id, as storages do."""

    def __init__(self, *words: Any) -> None:
        self.words = words


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.words if isinstance(value, Mention) else None


def dumped(value: Any) -> bytes:
    stream = io.BytesIO()
    Pickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def tensor(
    count: int, size: Any, stride: Any = None, offset: Any = 0, key: str = "0", kind: Any = None
) -> Call:
    storage = Mention("storage", kind or torch.FloatStorage, key, "cpu", count)
    stride = tuple(1 for _ in size) if stride is None else stride
    arguments = storage, offset, size, stride, False, collections.OrderedDict()
    return Call(torch._utils._rebuild_tensor_v2, *arguments)


def zip_file(path: Path, pickled: bytes, members: dict[str, bytes] | None = None, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("m/data.pkl", pickled)
        for name, content in ({"m/data/0": bytes(16)} if members is None else members).items():
            archive.writestr(name, content)
    return path


def old_file(path: Path, value: Any, keys: Any = (), rest: bytes = b"") -> Path:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = [torch_pickle.MAGIC, torch_pickle.PROTOCOL, system, value, list(keys)]
    path.write_bytes(b"".join(map(dumped, parts)) + rest)
    return path


def old_tensor(count: int, size: Any) -> Call:
    storage = Mention("storage", torch.FloatStorage, "0", "cpu", count, None)
    arguments = storage, 0, size, (1,), False, collections.OrderedDict()
    return Call(torch._utils._rebuild_tensor_v2, *arguments)


def nested(depth: int) -> bytes:
    return b"\x80\x02}X\x01\x00\x00\x00a)" + b"\x85" * depth + b"s."  # {"a": ((((...))))}


def deep_key(depth: int) -> bytes:
    return b"\x80\x02})" + b"\x85" * depth + b"Ns."  # {((((...)))): None}


def doubling(depth: int = 40) -> Any:
    """A small pickle of 2^depth tuples, whose text or hash would take for ever."""
    value: Any = ()
    for _ in range(depth):
        value = (value, value)
    return value


ATTACKS: dict[str, Callable[[Path], Path]] = {
    "a bytearray": lambda p: zip_file(p, dumped({"a": Call(bytearray, HUGE)})),
    "a tensor of any size": lambda p: zip_file(p, dumped({"a": Call(torch.Tensor, HUGE)})),
    "a tensor by its class": lambda p: zip_file(p, dumped({"a": Call(torch.FloatTensor, HUGE)})),
    "a storage by its class": lambda p: zip_file(p, dumped({"a": Call(torch.UntypedStorage, HUGE)})),
    "a storage that is not there": lambda p: zip_file(p, dumped({"a": tensor(HUGE, (4,), key="1")})),
    "a larger storage": lambda p: zip_file(p, dumped({"a": tensor(HUGE, (HUGE,))})),
    "a larger tensor": lambda p: zip_file(p, dumped({"a": tensor(4, (HUGE,))})),
    "an expanded tensor": lambda p: zip_file(p, dumped({"a": tensor(4, (1 << 20, 1 << 20), (0, 0))})),
    "an overlapping tensor": lambda p: zip_file(p, dumped({"a": tensor(4, (2, 2, 2), (1, 1, 1))})),
    "one storage a hundred times": lambda p: zip_file(
        p, dumped({f"a{i}": tensor(2500, (2500,)) for i in range(100)}), {"m/data/0": bytes(10_000)}
    ),
    "a negative shape": lambda p: zip_file(p, dumped({"a": tensor(4, (-4,))})),
    "a negative stride": lambda p: zip_file(p, dumped({"a": tensor(4, (2,), (-1,), 3)})),
    "a shape beyond numbers": lambda p: zip_file(p, dumped({"a": tensor(4, (1 << 200,))})),
    "a negative storage": lambda p: zip_file(p, dumped({"a": tensor(-4, (4,))})),
    "many dimensions": lambda p: zip_file(p, dumped({"a": tensor(4, (1,) * 10_000)})),
    "a quantised storage": lambda p: zip_file(p, dumped({"a": tensor(4, (4,), kind=torch.QInt8Storage)})),
    "a shape of texts": lambda p: zip_file(p, dumped({"a": tensor(4, ("4",), (1,))})),
    "a shape of doubling tuples": lambda p: zip_file(p, dumped({"a": tensor(4, (doubling(),), (1,))})),
    "a storage of doubling tuples": lambda p: zip_file(p, dumped({"a": tensor(doubling(), (4,))})),  # type: ignore[arg-type]
    "a dtype of doubling tuples": lambda p: zip_file(
        p,
        dumped({"a": Call(torch._utils._rebuild_tensor_v3, Mention("storage", torch.FloatStorage, "0", "cpu", 4),
                          0, (4,), (1,), False, collections.OrderedDict(), doubling())}),
    ),
    "an old file, keys of doubling tuples": lambda p: old_file(p, {"a": old_tensor(4, (4,))}, [doubling()]),
    "an old file, a larger storage": lambda p: old_file(p, {"a": old_tensor(HUGE, (4,))}, ["0"]),
    "an old file, its own size": lambda p: old_file(
        p, {"a": old_tensor(4, (4,))}, ["0"], struct.pack("<q", HUGE) + bytes(16)
    ),
    "an old file, ends early": lambda p: old_file(
        p, {"a": old_tensor(HUGE, (4,))}, ["0"], struct.pack("<q", HUGE) + bytes(16)
    ),
    "an old file, a bytearray": lambda p: old_file(p, {"a": Call(bytearray, HUGE)}),
    "a compressed member": lambda p: zip_file(
        p, dumped({"a": tensor(1 << 24, (1 << 24,))}), {"m/data/0": bytes(1 << 26)}, compression=zipfile.ZIP_DEFLATED
    ),
    "a place far into the memo": lambda p: zip_file(p, b"\x80\x02}r\xff\xff\xff\xff."),
    "a text that never ends": lambda p: zip_file(p, b"\x80\x02X\xff\xff\xff\x7fabc."),
    "deep tuples": lambda p: zip_file(p, nested(100_000)),
    "a deep key": lambda p: zip_file(p, deep_key(100_000)),
    "many instructions": lambda p: zip_file(p, b"\x80\x02" + b"}" * (torch_pickle.MAX_OPERATIONS + 1) + b"."),
    "many tensors": lambda p: zip_file(
        p, dumped(dict.fromkeys(map(str, range(torch_files.MAX_TENSORS + 1)), 0.5))
    ),
    "an attribute of a class": lambda p: zip_file(p, b"\x80\x02cpathlib\nPosixPath\n}X\x01\x00\x00\x00aK\x01sb."),
    "no pickle": lambda p: zip_file(p, b""),
    "takes more values than it has stored": lambda p: zip_file(p, b"\x80\x02(\x87."),
}  # fmt: skip


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails whatever allocates 512 MiB, where the system can be told so."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's means")
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_before_it_takes_memory(attack: str, tmp_path: Path) -> None:
    path = ATTACKS[attack](tmp_path / "a.pth")
    with little_memory(), pytest.raises(CheckpointError, match=r"a\.pth") as caught:
        torch_files.read_tensors(path)
    assert not isinstance(caught.value.__cause__, MemoryError | RuntimeError)  # torch's word for it


def test_two_members_of_one_name(tmp_path: Path) -> None:
    path = saved(TENSORS, tmp_path / "a.pth")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/data/0", bytes(48))
    with pytest.raises(CheckpointError, match="same name"):
        torch_files.read_tensors(path)


def test_members_that_overlap(tmp_path: Path) -> None:
    """One stored member under a thousand names."""
    zip_file(tmp_path / "a.pth", dumped({}), {f"m/data/{i:03}": bytes(1) for i in range(1000)})
    whole = bytearray((tmp_path / "a.pth").read_bytes())
    at = whole.index(b"PK\x01\x02")
    size = struct.pack("<II", 20_000, 20_000)
    while (at := whole.find(b"PK\x01\x02", at)) >= 0:
        whole[at + 16 : at + 20] = struct.pack("<I", zlib.crc32(bytes(20_000)))
        whole[at + 20 : at + 28] = size
        at += 1
    (tmp_path / "a.pth").write_bytes(whole)
    with pytest.raises(CheckpointError, match="overlap"):
        torch_files.read_tensors(tmp_path / "a.pth")


def test_no_class_is_touched(tmp_path: Path) -> None:
    zip_file(tmp_path / "a.pth", b"\x80\x02cpathlib\nPosixPath\nN}X\x07\x00\x00\x00touchedK\x01s\x86b.")
    with pytest.raises(CheckpointError):
        torch_files.read_tensors(tmp_path / "a.pth")
    assert not hasattr(Path, "touched")


@pytest.mark.parametrize(
    "pickled",
    [b"cos\nsystem\nN\x85R.", b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", b"cos\nPathLike\n)\x81."],
)
def test_functions_are_named_and_not_called(pickled: bytes) -> None:
    with pytest.raises(ValueError, match=r"it holds \S+, which would have to be executed"):
        torch_pickle.Interpreter(lambda key: memoryview(b"")).run(io.BytesIO(b"\x80\x02" + pickled))
