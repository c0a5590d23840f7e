"""Values as text, made in the program's own process: nothing here trusts the program's objects. Standard library only."""

from __future__ import annotations

import re
from _json import encode_basestring_ascii as quote
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

MAX_DEPTH, MAX_INT_BITS = 200, 14_000
"""Of a returned value. 14,000 bits are 4,215 digits: what int() reads again under CPython's default limit of 4,300."""
SMALL = 1 << 62
TAGS = frozenset({"tuple", "set", "dict", "repr", "float", "any"})
"""A dictionary with one of these as its only key would look like a tag; readers know ``any`` as one more."""
DICTS = frozenset({dict, Counter, OrderedDict, defaultdict})
"""Read by dict's own methods; equal to a dict with the same pairs, as Python has it."""
CONTAINERS = frozenset({list, tuple, set, frozenset}) | DICTS
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class TooLong(Exception):
    """The text of a value exceeds its limit."""


def encode(value: object, limit: int) -> str:
    """``value`` as sandboxes.types.CaseResult says, ASCII alone. Only exact types count: a subclass may lie about its
    contents and is given by its repr, as is a value inside itself and one nested deeper than MAX_DEPTH. Equal sets give
    equal text.

    Raises TooLong beyond ``limit`` characters, ValueError for an integer of more than 4,215 digits.
    """
    parts: list[str] = []
    room = limit
    inside: set[int] = set()

    def put(text: str) -> None:
        nonlocal room
        room -= len(text)
        if room < 0:
            raise TooLong
        parts.append(text)

    def sequence(items: Collection[Any], depth: int) -> None:
        kinds = set(map(type, items))
        if kinds == {int} and max(items) < SMALL and min(items) > -SMALL:  # the common long ones, ten times faster
            put("[" + ",".join(map(int.__repr__, items)) + "]")
            return
        put("[")
        for i, item in enumerate(items):
            if i:
                put(",")
            walk(item, depth)
        put("]")

    def mapping(table: dict[Any, object], depth: int) -> None:
        pairs = list(dict.items(table))
        if all(type(key) is str for key, _ in pairs) and not (len(pairs) == 1 and pairs[0][0] in TAGS):
            put("{")
            for i, (key, item) in enumerate(pairs):
                put(("," if i else "") + quote(key) + ":")
                walk(item, depth)
            put("}")
        else:
            put('{"dict":')
            sequence([list(pair) for pair in pairs], depth)
            put("}")

    def a_set(items: Iterable[object], depth: int) -> None:
        nonlocal parts, room
        whole, texts = parts, []
        for item in items:
            parts = []
            walk(item, depth)
            texts.append("".join(parts))
        room += sum(map(len, texts))  # counted once more with the rest
        parts = whole
        put('{"set":[' + ",".join(sorted(texts)) + "]}")

    def walk(v: Any, depth: int) -> None:
        kind = type(v)
        if v is None:
            put("null")
        elif kind is bool:
            put("true" if v else "false")
        elif kind is int:
            if v.bit_length() > MAX_INT_BITS:
                raise ValueError("an integer of more than 4215 digits")
            put(int.__repr__(v))
        elif kind is float:
            text = float.__repr__(v)
            put(text if text[-1] not in "nf" else '{"float":"' + text + '"}')
        elif kind is str:
            if len(v) > room:
                raise TooLong
            put(quote(v))
        elif kind not in CONTAINERS or depth > MAX_DEPTH or id(v) in inside:
            put('{"repr":' + quote(describe(v)) + "}")
        else:
            inside.add(id(v))
            if kind is list:
                sequence(v, depth + 1)
            elif kind in DICTS:
                mapping(v, depth + 1)
            elif kind is tuple:
                put('{"tuple":')
                sequence(v, depth + 1)
                put("}")
            else:
                a_set(v, depth + 1)
            inside.discard(id(v))

    walk(value, 0)
    return "".join(parts)


def describe(value: object, convert: Callable[[object], str] = repr) -> str:
    """repr or str of a foreign object, without addresses; its own code runs here and may do anything."""
    try:
        text = convert(value)
        return ADDRESS.sub(" at 0x", text if type(text) is str else "<no text>")
    except MemoryError:
        raise
    except BaseException:
        return "<no text>"


def one_line(error: BaseException) -> str:
    """Type and message of an exception, at most 300 characters."""
    try:
        name = str(type.__dict__["__name__"].__get__(type(error)))
        text = " ".join((name + ": " + describe(error, str)[:600]).split())
        return text.encode("utf-8", "replace").decode()[:300].removesuffix(":")
    except BaseException:
        return "exception without a name"
