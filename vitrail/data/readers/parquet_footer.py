"""Where the columns of a Parquet file lie, by its footer: read here, and not by pyarrow.

    file ──last bytes──► footer, a struct in Thrift's compact protocol ──► Chunk of each row group and column

pyarrow's own RowGroupMetaData.column ends the process, without an exception, where a footer contradicts itself.
Everything else that is asked of pyarrow raises.

A struct is read as {number of the field: value}; the numbers are those of parquet.thrift in apache/parquet-format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
DEEPEST = 16  # structs in structs; a footer has six
ROW_GROUPS, COLUMNS, COLUMN = 4, 1, 3  # of FileMetaData, of RowGroup, of ColumnChunk
PATH, CODEC, UNPACKED_SIZE, SIZE, DATA_PAGE = 3, 4, 6, 7, 9  # of ColumnMetaData
UNCOMPRESSED = 0  # a codec


@dataclass(frozen=True)
class Chunk:
    """A column of one row group."""

    path: str  # of the column in the schema: `image.bytes`
    compressed: bool
    unpacked_size: int  # bytes
    size: int  # bytes in the file
    start: int  # of its first page of data in the file


def read_chunks(file: Path) -> list[list[Chunk]]:
    """The columns of each row group; ValueError where the footer is damaged."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(max(0, size - 8))
        tail = stream.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or length > size - 12:
            raise ValueError("its end is not that of a Parquet file")
        stream.seek(size - 8 - length)
        footer = stream.read(length)
    try:
        groups = _Compact(footer).struct(0)[ROW_GROUPS]
        return [[_chunk(column[COLUMN]) for column in group[COLUMNS]] for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is damaged") from error


def _chunk(column: dict[int, Any]) -> Chunk:
    numbers = [column[field] for field in (CODEC, UNPACKED_SIZE, SIZE, DATA_PAGE)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("its footer has sizes that are none")
    codec, unpacked_size, size, start = numbers
    path = b".".join(column[PATH]).decode()
    return Chunk(path, codec != UNCOMPRESSED, unpacked_size, size, start)


class _Compact:
    """Values in Thrift's compact protocol, one after the other. Whatever the bytes are, each call reads at least one
    of them, or raises IndexError at their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > DEEPEST:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self.integer()
            fields[number] = kind == 1 if kind <= 2 else self.value(kind, depth)  # true and false are kinds
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 8:
            return self.bytes(self.varint())
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (9, 10):
            return self.list(depth)
        if kind <= 3:
            return self.byte()
        if kind == 7:
            return self.bytes(8)
        raise ValueError(f"its footer has a value of kind {kind}")

    def list(self, depth: int) -> list[Any]:
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.data) - self.at or depth > DEEPEST:
            raise ValueError("its footer has a list that is longer than itself")
        return [self.value(head & 0x0F, depth + 1) for _ in range(count)]

    def bytes(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise IndexError
        return self.data[start : self.at]

    def integer(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def varint(self) -> int:
        number = shift = 0
        while (byte := self.byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("its footer has a number of more than 64 bits")
        return number | byte << shift

    def byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte
