"""The text of a preprocessing op and the op, both ways: 'resize(224, area)' <-> Resize(224, method="area").

preprocess.py splits a line at `|` and hands each piece to `parse_op`. An op is a name, and arguments in brackets
as in Python: numbers, tuples of numbers, and words, which need no quotes. By position, numbers fill the number
fields of an op in order, and words its word fields. Nothing is evaluated: arguments are literals.
"""

from __future__ import annotations

import ast
from dataclasses import MISSING, Field, fields
from typing import Any, TypeAlias

from vitrail.data.augment import FlipLR, InceptionCrop, RandomCrop, RandomErasing
from vitrail.data.ops.pixel_ops import CentralCrop, Crop, PixelOp, Resize, ResizeSmall, Uint8
from vitrail.data.ops.randaugment import RandAugment
from vitrail.data.ops.value_ops import Normalize, ToRange, ValueOp
from vitrail.errors import ConfigError

Op: TypeAlias = PixelOp | ValueOp

OPS: dict[str, type[Op]] = {
    "resize": Resize,
    "resize_small": ResizeSmall,
    "central_crop": CentralCrop,
    "crop": Crop,
    "uint8": Uint8,
    "inception_crop": InceptionCrop,
    "random_crop": RandomCrop,
    "flip_lr": FlipLR,
    "randaugment": RandAugment,
    "random_erasing": RandomErasing,
    "to_range": ToRange,
    "normalize": Normalize,
}


def parse_op(text: str) -> Op:
    """The op of a piece of a line. ConfigError names the op, its arguments, and the ops there are."""
    name, positional, arguments = _parse_call(text)
    if name not in OPS:
        raise ConfigError(f"no op is called '{name}'; the ops are {', '.join(OPS)}")
    op = OPS[name]
    usage = f"{name} takes ({', '.join(_parameter(field) for field in fields(op))})"
    for are_words in (True, False):
        values = [value for value in positional if isinstance(value, str) == are_words]
        places = [field.name for field in fields(op) if _is_word(field) == are_words]
        if len(values) > len(places):
            raise ConfigError(f"'{text}': too many {'words' if are_words else 'numbers'}; {usage}")
        for place, value in zip(places, values, strict=False):
            if place in arguments:
                raise ConfigError(f"'{text}': {place} is given twice; {usage}")
            arguments[place] = value
    for field in fields(op):
        if field.default is MISSING and field.name not in arguments:
            raise ConfigError(f"'{text}': {field.name} is missing; {usage}")
    for argument in arguments:
        if argument not in {field.name for field in fields(op)}:
            raise ConfigError(f"'{text}': nothing is called {argument}; {usage}")
    return op(**arguments)


def op_text(op: Op) -> str:
    """The op as it is written in a line; arguments that have their default value are left out."""
    arguments: list[str] = []
    skipped = {True: False, False: False}  # whether a word, a number before this one was left out
    for field in fields(op):
        value = vars(op)[field.name]
        if value == field.default:
            skipped[_is_word(field)] = True
        elif skipped[_is_word(field)]:
            arguments.append(f"{field.name}={_value_text(value)}")
        else:
            arguments.append(_value_text(value))
    return f"{op.name}({', '.join(arguments)})" if arguments else op.name


def _parse_call(text: str) -> tuple[str, list[object], dict[str, object]]:
    """The name, the arguments by position, and those by keyword."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise SyntaxError
        positional = [_literal(argument) for argument in call.args]
        return call.func.id, positional, {_keyword(k): _literal(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ConfigError(f"'{text}' is not an op; write name, or name(1, word, key=(0.5, 2))") from None


def _keyword(node: ast.keyword) -> str:
    if node.arg is None:
        raise SyntaxError
    return node.arg


def _literal(node: ast.expr) -> object:
    value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


def _is_word(field: Field[Any]) -> bool:
    return field.type == "str"  # annotations are text in the modules of the ops


def _parameter(field: Field[Any]) -> str:
    return field.name if field.default is MISSING else f"{field.name}={_value_text(field.default)}"


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_value_text(item) for item in value)})"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
