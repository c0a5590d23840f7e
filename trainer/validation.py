"""Validation errors as one line that names the file, the field and the remedy."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from trainer.types import InputError


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest known one, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names) or 'none'}"


def one_line(error: ValidationError, file: str, model: type[BaseModel]) -> InputError:
    """The first of pydantic's errors as an InputError ``<file>: <dotted field>: <what and remedy>``.

    ``model`` is the record that was validated: an unknown key is compared with the keys it has at
    that place. Where there is more than one error, their number follows.
    """
    first, *others = error.errors(include_url=False)
    loc = first["loc"]
    field = ".".join(str(part) for part in loc)
    match first["type"]:
        case "extra_forbidden":
            what = f"unknown key; {did_you_mean(str(loc[-1]), _keys_at(model, loc[:-1]))}"
        case "missing":
            what = "missing; add it"
        case _:
            what = first["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
            # A record's own check has the whole record as its input, and says itself what it found.
            what += "" if isinstance(first["input"], dict) else f", got {_short(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    where = f"{file}: {field}: " if field else f"{file}: "
    return InputError(" ".join(f"{where}{what}{more}".split()))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> set[str]:
    """Keys allowed at ``loc``. A part that is no field is a list index, a mapping key or a union's
    tag; it does not lead to another record."""
    models = {model}
    for part in loc:
        fields = [m.model_fields[part] for m in models if isinstance(part, str) and part in m.model_fields]
        if fields:
            models = {found for field in fields for found in _models_in(field.annotation)}
        else:
            models = {m for m in models if _tag(m) == part} or models
    return {name for m in models for name in m.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _tag(model: type[BaseModel]) -> Any:
    kind = model.model_fields.get("kind")
    return kind.default if kind else None
