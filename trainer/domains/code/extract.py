"""The program in a reply. Text in, text out: nothing is run, and no text can make it slow or raise.

What counts, in this order:

1. Reasoning between ``<think>`` and ``</think>`` is no answer; an unclosed one swallows the rest.
2. Fenced blocks without a label or labelled as Python; the last one may stay open (a reply cut at its limit).
   In mode ``call`` the last block that defines the entry is taken: models correct themselves, so later is better,
   and an example of use after the solution defines nothing. In mode ``stdin`` the last one that reads input, else
   the last with a call in it: a block of sample output is valid Python now and then (``5``), and does neither.
3. Without any fence, the whole reply, if it is such a program; else what stands from the first line that looks like
   code up to the first line that is none.

Where the task's prelude holds the start of the function (HumanEval), a reply may also be its body: then indentation
is kept, and the program is the body, to be read after the prelude.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

LONGEST = 64 * 1024
"""Longest program in characters, and how much of the fenced text is looked at, from the end. What keeps Python's
parser from trouble: on hostile text of this size its worst time is below a second and its stack holds."""
DEEPEST = 80
"""Brackets open at once."""
MOST_CUTS = 4

# Possessive, so that a line that is no fence is not read again from each of its places.
_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^`\s]*+)[^`]*+")
_OPENED_LATE = re.compile(r"(`{3,}|~{3,})[ \t]*(python3?|py3?)[ \t]*$", re.IGNORECASE)
_PYTHON = frozenset({"", "python", "py", "python3", "py3"})
_CODE_LINE = re.compile(r"(?:def|class|import|from|async def|@)\b|@\w", re.ASCII)
_READS = frozenset({"input", "stdin", "open", "fileinput", "read", "readline"})


@dataclass(frozen=True)
class Block:
    """A fenced block: its label in small letters and its text."""

    label: str
    text: str


class Wanted(NamedTuple):
    """What a program must be: ``mode`` and ``entry`` as in ``trainer.types.Tests``; ``prelude`` runs before it."""

    entry: str
    mode: Literal["call", "stdin"]
    prelude: str


def program_in(reply: str, entry: str = "", mode: Literal["call", "stdin"] = "call", prelude: str = "") -> str | None:
    """The program of a reply, to be run after the prelude; None if there is none."""
    wanted = Wanted(entry, mode, prelude)
    text = answered(reply.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    found = fenced(text)
    blocks = [b.text for b in found if b.label in _PYTHON]
    if found and not blocks:
        return None
    candidates = _last(blocks) if blocks else [text]
    if wanted.mode == "stdin":
        return _last_reader(candidates) or (None if blocks else _salvaged(text, wanted))
    for candidate in reversed(candidates):
        if (program := _callable(candidate, wanted, in_fence=bool(blocks))) is not None:
            return program
    return None if blocks else _salvaged(text, wanted)


def _last(blocks: Sequence[str]) -> list[str]:
    sizes = accumulate(len(block) for block in reversed(blocks))
    count = sum(size <= LONGEST for size in sizes)
    return list(blocks[len(blocks) - count :])


def answered(reply: str) -> str:
    """The reply without its reasoning."""
    answer = reply.rpartition("</think>")[2]
    return answer.partition("<think>")[0]


def fenced(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text, in order (CommonMark 4.5, and an opening fence at the end of a line of
    prose when it is labelled as Python). The indentation of the fence is taken off its lines."""
    return list(_fenced(text.split("\n")))


def _fenced(lines: Sequence[str]) -> Iterator[Block]:
    marker, indent, label = "", "", ""
    held: list[str] = []
    for line in lines:
        bare = line.strip()
        if not marker:
            opening = _FENCE.fullmatch(line) if bare[:3] in ("```", "~~~") else None
            late = None if opening else _OPENED_LATE.search(line[-24:])
            if opening:
                indent, marker, label = opening[1], opening[2], opening[3].lower()
            elif late:
                indent, marker, label = "", late[1], "python"
            held = []
        elif len(bare) >= len(marker) and bare == marker[0] * len(bare):
            yield Block(label, "\n".join(held) + "\n")
            marker = ""
        else:
            held.append(line.removeprefix(indent))
    if marker and held:
        yield Block(label, "\n".join(held).rstrip().removesuffix(marker) + "\n")


def parsed(source: str) -> ast.Module | None:
    """The syntax tree, or None for what is too long, too deep or no Python."""
    if len(source) > LONGEST or "\0" in source or _depth(source) > DEEPEST:
        return None
    try:
        source.encode()
        return ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _depth(source: str) -> int:
    """Brackets open at once, at most; those in texts and comments count too."""
    deepest = depth = 0
    for char in re.findall(r"[\[({})\]]", source):
        depth = depth + 1 if char in "[({" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _callable(candidate: str, wanted: Wanted, *, in_fence: bool) -> str | None:
    """The candidate if it defines the entry, by itself or as the body that follows the prelude."""
    tree = parsed(candidate)
    if tree is not None and defines(tree, wanted.entry):
        return candidate
    owner, _, method = wanted.entry.rpartition(".")
    if tree is not None and owner and defines(tree, method):
        # LiveCodeBench takes a plain function too where its starter code has a class.
        return f"{candidate}\n\n\nclass {owner}:\n    {method} = staticmethod({method})\n"
    if not wanted.prelude or not candidate.strip():
        return None
    first = next(line for line in candidate.split("\n") if line.strip())
    if first[0] not in " \t":
        if not in_fence:
            return None
        # A body written at the margin of its own block.
        candidate = "\n".join("    " + line if line.strip() else line for line in candidate.split("\n"))
    return _body(candidate, wanted)


def _body(candidate: str, wanted: Wanted) -> str | None:
    """An indented text as the rest of the prelude's last function, cut where it is no Python any more (a base model
    goes on after the function until its limit)."""
    for _ in range(MOST_CUTS):
        tree = parsed(wanted.prelude + candidate)
        if tree is not None:
            functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == wanted.entry]
            return candidate if functions and len(functions[-1].body) > 1 else None
        line = _bad_line(wanted.prelude + candidate)
        keep = line - 1 - wanted.prelude.count("\n")
        lines = candidate.split("\n")
        if not 0 < keep < len(lines):
            return None
        candidate = "\n".join(lines[:keep]) + "\n"
    return None


def _salvaged(text: str, wanted: Wanted) -> str | None:
    """A program without a fence among prose: from the first line that looks like code, cut where it is none."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _CODE_LINE.match(line)), None)
    if start is None:
        return None
    kept = lines[start:]
    for _ in range(MOST_CUTS):
        source = "\n".join(kept) + "\n"
        if (tree := parsed(source)) is not None:
            fits = _reads(tree) if wanted.mode == "stdin" else defines(tree, wanted.entry)
            return source if fits else None
        line = _bad_line(source)
        if not 1 < line <= len(kept):
            return None
        kept = kept[: line - 1]
    return None


def _bad_line(source: str) -> int:
    """Number of the line the parser stumbles over, 0 if it does not say."""
    if len(source) > LONGEST or "\0" in source or _depth(source) > DEEPEST:
        return 0
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error.lineno or 0
    except (ValueError, MemoryError, RecursionError):
        return 0
    return 0


def defines(tree: ast.Module, entry: str) -> bool:
    """Whether a name (``f``, or ``Solution.f`` for a method) is bound at the top of a module."""
    owner, _, name = entry.rpartition(".")
    if owner:
        classes = [n for n in _statements(tree.body) if isinstance(n, ast.ClassDef) and n.name == owner]
        return any(name in _bound(n) for c in classes for n in _statements(c.body))
    return any(name in _bound(n) for n in _statements(tree.body))


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the if, try and with blocks in it."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                waiting.extend(reversed(getattr(node, field, [])))


def _bound(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return {name}
        case ast.ImportFrom(names=names) | ast.Import(names=names):
            return {a.asname or a.name for a in names}
        case _:
            return set()


def _last_reader(candidates: Sequence[str]) -> str | None:
    """Of programs for standard input the last that reads it, else the last that calls anything."""
    caller = None
    for candidate in reversed(candidates):
        tree = parsed(candidate)
        if tree is None:
            continue
        if _reads(tree):
            return candidate
        if caller is None and any(isinstance(node, ast.Call) for node in ast.walk(tree)):
            caller = candidate
    return caller


def _reads(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id in _READS) or (isinstance(node, ast.Attribute) and node.attr in _READS)
        for node in ast.walk(tree)
    )
