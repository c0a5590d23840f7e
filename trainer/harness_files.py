"""The harness as text: its files to records and back, single-factor edits, and the factors of a diff.

A harness is ``recipe.toml``, ``procedure.toml``, ``reward/<term>.toml`` and
``diagnostics/<name>.toml``; a term or diagnostic is named by its file. All functions are pure.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import ValidationError

from trainer.python_source import check_diagnostic_source, check_term_source
from trainer.shaping import SHAPING_TERMS
from trainer.types import (
    Diagnostic,
    DropDiagnostic,
    Harness,
    HarnessEdit,
    InputError,
    Layer,
    PutDiagnostic,
    PutTerm,
    Recipe,
    Record,
    RewardTerm,
    SetOption,
    SetProcedure,
    SetWeight,
    flatten,
)
from trainer.validation import did_you_mean, one_line

RECIPE = "recipe.toml"
PROCEDURE = "procedure.toml"
MAX_FILE_CHARS = 1 << 16
LAYOUT = "recipe.toml, procedure.toml, reward/<term>.toml, diagnostics/<name>.toml and *.md"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_PART = re.compile(rf"(reward|diagnostics)/({_NAME.pattern})\.toml")
_NOTE = re.compile(r"[A-Za-z0-9_-]+\.md")
_HEADER = re.compile(r"\s*\[([\w.]+)\]\s*(#.*)?")
_WEIGHTS = "reward.weights."

R = TypeVar("R", bound=Record)


class _Procedure(Record):
    order: tuple[Layer, ...]


# --------------------------------------------------------------------------------------- parse


def is_harness_file(path: str) -> bool:
    """Whether a path (relative, with slashes) may be part of a harness."""
    return path in (RECIPE, PROCEDURE) or bool(_PART.fullmatch(path) or _NOTE.fullmatch(path))


def parse_harness(files: Mapping[str, str], commit: str) -> Harness:
    """Parse path → text. Raises InputError on an unknown file, key or name, a wrong type, a weight
    without a term, a part that is not either SQL or Python that keeps its contract, or a missing recipe. Nothing is
    executed. ``*.md`` at the top is documentation and is skipped."""
    terms: dict[str, RewardTerm] = {}
    diagnostics: dict[str, Diagnostic] = {}
    for path, text in sorted(files.items()):
        if not is_harness_file(path):
            raise InputError(f"{path}: not a harness file; a harness has {LAYOUT}")
        if not (part := _PART.fullmatch(path)):
            continue
        kind, name = part.groups()
        if kind == "reward" and name in SHAPING_TERMS:
            raise InputError(f"{path}: the name {name} stands for an option of recipe.toml; rename the file")
        if kind == "reward":
            terms[name] = _checked_term(_parse(RewardTerm, _table(text, path), path, name), path)
        else:
            diagnostics[name] = _checked_diagnostic(_parse(Diagnostic, _table(text, path), path, name), path)
    if RECIPE not in files:
        raise InputError(f"{RECIPE}: missing; restore it from an earlier commit of the harness")
    recipe = _parse(Recipe, _table(files[RECIPE], RECIPE), RECIPE)
    for term in recipe.reward.weights:
        if term not in terms:
            raise InputError(f"{RECIPE}: {_WEIGHTS}{term}: no file reward/{term}.toml; {did_you_mean(term, terms)}")
    if PROCEDURE not in files:
        return Harness(commit=commit, recipe=recipe, terms=terms, diagnostics=diagnostics)
    order = _parse(_Procedure, _table(files[PROCEDURE], PROCEDURE), PROCEDURE).order
    if len(set(order)) != len(order):
        raise InputError(f"{PROCEDURE}: order: a layer occurs twice; name each layer once")
    return Harness(commit=commit, recipe=recipe, terms=terms, diagnostics=diagnostics, procedure=order)


def _checked_term(term: RewardTerm, path: str) -> RewardTerm:
    _one_of(path, "sql", term.sql, term.python)
    if term.python:
        check_term_source(term.python, path)
    return term


def _checked_diagnostic(diagnostic: Diagnostic, path: str) -> Diagnostic:
    _one_of(path, "metric", diagnostic.metric, diagnostic.python)
    if diagnostic.python and diagnostic.evidence:
        raise InputError(f"{path}: evidence: is SQL beside `python`; define `def evidence(rollouts):` in python")
    if diagnostic.python:
        check_diagnostic_source(diagnostic.python, path)
    return diagnostic


def _one_of(path: str, query: str, sql: str, python: str) -> None:
    if sql and python:
        raise InputError(f"{path}: python: there is `{query}` too; keep one of them")
    if not sql and not python:
        raise InputError(f"{path}: {query}: missing; add it, or `python` where SQL cannot say it")


def _table(text: str, file: str) -> dict[str, Any]:
    if len(text) > MAX_FILE_CHARS:
        raise InputError(f"{file}: {len(text)} characters; keep it below {MAX_FILE_CHARS}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not valid TOML: {' '.join(str(error).split())}") from None


def _parse(model: type[R], table: dict[str, Any], file: str, name: str | None = None) -> R:
    """Validate without coercion (``"0.1"`` is no number, ``true`` is no count). JSON mode is the one
    strict mode of pydantic's in which an array may become a tuple."""
    if name is not None and table.setdefault("name", name) != name:
        raise InputError(f"{file}: name: expected '{name}' as in the file name, got {table['name']!r}")
    for path, value in flatten(table):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{file}: {path}: expected a finite number, got {value}")
    try:
        return model.model_validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        raise one_line(error, file, model) from None


# ---------------------------------------------------------------------------------------- dump


def dump_recipe(recipe: Recipe) -> str:
    """Canonical TOML: all options in the order of the record, one a line."""
    return "\n\n".join(_sections(recipe.model_dump(), "")) + "\n"


def _sections(table: Mapping[str, Any], path: str) -> Iterator[str]:
    lines = [f"{key} = {_toml(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    if lines or not table:  # an empty section is not the same as the default
        yield "\n".join([f"[{path}]", *lines])
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _sections(value, f"{path}.{key}" if path else key)


def _toml(value: Any) -> str:
    # tomli_w breaks arrays over lines; an option has to stay on one.
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def dump_term(term: RewardTerm) -> str:
    """The text of ``reward/<term.name>.toml``."""
    return _dump_part(term)


def dump_diagnostic(diagnostic: Diagnostic) -> str:
    """The text of ``diagnostics/<diagnostic.name>.toml``."""
    return _dump_part(diagnostic)


def _dump_part(part: RewardTerm | Diagnostic) -> str:
    optional = {key for key in ("sql", "metric", "python", "evidence", "source") if not getattr(part, key, None)}
    table = part.model_dump(exclude={"name", *optional})
    # A carriage return would be normalised away inside a multi-line string.
    return tomli_w.dumps(table, multiline_strings=not any("\r" in str(v) for v in table.values()))


# ---------------------------------------------------------------------------------------- edit


def set_options(files: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Set recipe options (dotted path → value), one line of ``recipe.toml`` each; comments stay.

    ``reward.weights.<term>`` sets the weight of an existing term. Raises InputError on a path that
    does not exist (with a suggestion) or a value of the wrong type or range.
    """
    harness = parse_harness(files, "")
    known = {path for path in Recipe().options() if not path.startswith(_WEIGHTS)}
    known |= {_WEIGHTS + term for term in harness.terms}
    table = harness.recipe.model_dump(mode="json")
    text = files[RECIPE]
    for path, value in options.items():
        if path not in known:
            near = sorted(p for p in known if p.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1])
            hint = f"did you mean '{near[0]}'?" if near else did_you_mean(path, known)
            raise InputError(f"{RECIPE}: {path}: no such option; {hint}")
        *sections, key = path.split(".")
        target = table
        for section in sections:
            target = target[section]
        target[key] = value
        text = _set_line(text, path, value)
    # Parsed when all are set: some options are possible together only.
    recipe = _parse(Recipe, table, RECIPE)
    # An option written in an unusual way (array over lines, dotted key) is beyond _set_line.
    if _recipe_or_none(text) != recipe:
        text = dump_recipe(recipe)
    return {**files, RECIPE: text}


def _recipe_or_none(text: str) -> Recipe | None:
    try:
        return _parse(Recipe, _table(text, RECIPE), RECIPE)
    except InputError:
        return None


def _set_line(text: str, path: str, value: Any) -> str:
    section, key = path.rsplit(".", 1)
    lines = text.rstrip("\n").split("\n")
    line = f"{key} = {_toml(value)}"
    option = re.compile(rf"\s*{re.escape(key)}\s*=[^#]*?(\s*#.*)?")
    here, end = False, None
    for i, old in enumerate(lines):
        if header := _HEADER.fullmatch(old):
            here = header[1] == section
        elif here and (found := option.fullmatch(old)):
            lines[i] = line + (found[1] or "")
            return "\n".join(lines) + "\n"
        if here and old.strip():
            end = i + 1
    lines[end or len(lines) :] = [line, *lines[end:]] if end else ["", f"[{section}]", line]
    return "\n".join(lines) + "\n"


def apply_edit(files: Mapping[str, str], edit: HarnessEdit) -> Mapping[str, str]:
    """The files after a single-factor edit.

    Raises InputError where a name, option, term or value is not acceptable, and where the edit
    changes nothing or another factor than it declares: the declared factor must equal the diff.
    """
    before = parse_harness(files, "")
    after: dict[str, str]
    match edit.change:
        case SetOption(path=path, value=value):
            if path.startswith(_WEIGHTS):
                raise InputError(f"edit: {path}: a weight is no option; use the change kind 'weight'")
            after = set_options(files, {path: value})
        case SetWeight(term=term, value=weight):
            if term not in before.terms:
                raise InputError(f"edit: {_WEIGHTS}{term}: no such reward term; {did_you_mean(term, before.terms)}")
            after = set_options(files, {_WEIGHTS + term: weight})
        case PutTerm(term=new, weight=weight):
            after = {**files, _part_path("reward", new.name): dump_term(new)}
            after = set_options(after, {_WEIGHTS + new.name: weight})
        case PutDiagnostic(diagnostic=diagnostic):
            after = {**files, _part_path("diagnostics", diagnostic.name): dump_diagnostic(diagnostic)}
        case DropDiagnostic(name=name):
            after = {path: text for path, text in files.items() if path != _part_path("diagnostics", name)}
        case SetProcedure(order=order):
            after = {**files, PROCEDURE: _with_order(files[PROCEDURE], order)}
    actual = diff_factors(before, parse_harness(after, ""))
    if actual != (edit.factor,):
        raise InputError(
            f"edit: declares {edit.factor} but changes {', '.join(actual) or 'nothing'}; change one factor"
        )
    return after


def _with_order(text: str, order: Sequence[Layer]) -> str:
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join([*comments, f"order = {_toml(list(order))}"]) + "\n"


def _part_path(folder: Literal["reward", "diagnostics"], name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"edit: name: expected {_NAME.pattern}, got {name[:60]!r}")
    return f"{folder}/{name}.toml"


# --------------------------------------------------------------------------------------- diff


def recipe_factors(a: Recipe, b: Recipe) -> tuple[str, ...]:
    """Dotted paths of the options that differ, sorted. A term without a weight has weight 0."""
    left, right = a.options(), b.options()
    return tuple(sorted(p for p in left.keys() | right.keys() if left.get(p, 0.0) != right.get(p, 0.0)))


def diff_factors(a: Harness, b: Harness) -> tuple[str, ...]:
    """Factors that differ, sorted, named as by ``HarnessEdit.factor``; ``procedure`` is one.

    A term whose file differs is one factor together with its weight.
    """
    terms = _differing(a.terms, b.terms)
    with_term = {_WEIGHTS + term for term in terms}
    factors = [path for path in recipe_factors(a.recipe, b.recipe) if path not in with_term]
    factors += [f"reward.term.{term}" for term in terms]
    factors += [f"diagnostics.{name}" for name in _differing(a.diagnostics, b.diagnostics)]
    factors += ["procedure"] * (a.procedure != b.procedure)
    return tuple(sorted(factors))


def _differing(a: Mapping[str, Record], b: Mapping[str, Record]) -> Sequence[str]:
    return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
