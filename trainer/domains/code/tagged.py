"""Python values as JSON, with what JSON lacks tagged as in ``sandboxes.types.CaseResult``.

Nothing but the standard library is needed: the text of this file also travels into the sandbox, before programs
that record or check values there.
"""

from __future__ import annotations

import json
from typing import Any

ANY = "any"
TAGS = ("tuple", "set", "dict", "repr", "float", ANY)
"""A JSON object with one of these as its only key is a tag; ANY stands in expected values alone (a list of which
one must be met). A dictionary that would look like one is itself written as ``dict``."""


class Opaque:
    """Stands for an object of which only the text is known; equal to nothing, itself aside."""

    def __init__(self, text: str) -> None:
        self.text = text


def encode(value: Any) -> Any:
    """The value in JSON's types. Raises RecursionError for one that contains itself."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"float": str(value)}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((encode(v) for v in value), key=json.dumps)}
    if isinstance(value, dict):
        if all(isinstance(k, str) for k in value) and not (len(value) == 1 and next(iter(value)) in TAGS):
            return {k: encode(v) for k, v in value.items()}
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    return {"repr": repr(value)}


def decode(node: Any) -> Any:
    """The value that ``encode`` wrote; other objects come back as Opaque."""
    if isinstance(node, list):
        return [decode(v) for v in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((tag, held),) = node.items()
        if tag == "tuple":
            return tuple(decode(v) for v in held)
        if tag == "set":
            return {decode(v) for v in held}
        if tag == "dict":
            return {decode(k): decode(v) for k, v in held}
        if tag == "float":
            return float(held)
        if tag == "repr":
            return Opaque(held)
    return {k: decode(v) for k, v in node.items()}


def dump(value: Any) -> str:
    """The value as tagged JSON text without spaces."""
    return json.dumps(encode(value), separators=(",", ":"))


def load(text: str) -> Any:
    """The value of a tagged JSON text. Raises ValueError, TypeError or RecursionError for what is none."""
    return decode(json.loads(text))
