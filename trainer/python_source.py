"""What a Python part of the harness may look like. Its text is parsed here, and never run.

A reward term defines ``reward(rows)``; a diagnostic defines ``metric(rollouts)`` and, if it wants, ``evidence(rollouts)``.
Equal rows must give equal values, so clocks, randomness, files and processes are refused by name, with the remedy. That
is advice given early, not a border: a text can get around it, and then meets the sandbox (trainer.python_parts).
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections.abc import Iterator, Mapping, Sequence

from trainer.types import InputError
from trainer.validation import did_you_mean

MAX_PYTHON_CHARS = 16_000

MODULES = frozenset({
    "__future__", "array", "ast", "bisect", "cmath", "collections", "copy", "dataclasses", "decimal", "difflib",
    "enum", "fractions", "functools", "hashlib", "heapq", "html", "itertools", "json", "keyword", "math", "numbers",
    "operator", "re", "statistics", "string", "textwrap", "tokenize", "typing", "unicodedata", "zlib",
})  # fmt: skip
"""What may be imported: modules whose functions depend on their arguments alone."""

REFUSED_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("open", "input", "print"), "everything it may read is handed in, and only its value is read"),
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "breakpoint"), "write the code itself"),
    **dict.fromkeys(("exit", "quit"), "return a value"),
    **dict.fromkeys(("id", "hash"), "they differ between processes, and equal rows must give equal values"),
}


def check_term_source(source: str, file: str) -> None:
    """Raise InputError (file, field, what, remedy) unless ``source`` is a reward term's contract."""
    _check(source, f"{file}: python", "reward(rows)", {"reward": "rows"})


def check_diagnostic_source(source: str, file: str) -> None:
    """Raise InputError (file, field, what, remedy) unless ``source`` is a diagnostic's contract."""
    _check(source, f"{file}: python", "metric(rollouts)", {"metric": "rollouts", "evidence": "rollouts"})


def defines(source: str, name: str) -> bool:
    """Whether a source that was checked defines the function ``name``."""
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in _parsed(source, "").body)


def _check(source: str, where: str, wanted: str, contract: Mapping[str, str]) -> None:
    """``contract``: function name to its argument; the first one must be there."""
    if len(source) > MAX_PYTHON_CHARS:
        raise InputError(f"{where}: {len(source)} characters; keep it below {MAX_PYTHON_CHARS}")
    tree = _parsed(source, where)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    first = next(iter(contract))
    if first not in functions:
        raise InputError(f"{where}: defines no function {first}; define `def {wanted}:`")
    for name, argument in contract.items():
        if name in functions and not _takes_one(functions[name]):
            raise InputError(
                f"{where}: {name} is not called with one argument; define `def {name}({argument}):`, "
                "no generator and not async"
            )
    for node in ast.walk(tree):
        for module in _imported(node):
            if module.split(".")[0] not in MODULES:
                raise InputError(f"{where}: import of {module or 'a neighbour'}: use {', '.join(sorted(MODULES))}")
    _check_names(source, where)


def _parsed(source: str, where: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"{where}: line {error.lineno}: {' '.join(error.msg.split())}: correct the source") from None
    except (ValueError, RecursionError, MemoryError) as error:
        what = " ".join(str(error).split()) or "nested too deeply"
        raise InputError(f"{where}: cannot be parsed ({what}): simplify the source") from None


def _takes_one(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    keywords = sum(default is None for default in given.kw_defaults)
    fits = required <= 1 and (len(positional) >= 1 or given.vararg is not None) and not keywords
    return fits and isinstance(function, ast.FunctionDef) and not _yields(function.body)


def _yields(body: Sequence[ast.stmt]) -> bool:
    nodes: list[ast.AST] = list(body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return False


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "" if node.level or node.module is None else node.module


def _check_names(source: str, where: str) -> None:
    """Names that are looked up outside the text: only harmless builtins are there."""
    try:
        with warnings.catch_warnings(action="ignore"):
            top = symtable.symtable(source, "part", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}: correct the source") from None
    tables = list(_tables(top))
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    own |= {s.get_name() for t in tables for s in t.get_symbols() if s.is_declared_global() and s.is_assigned()}
    outside = {
        s.get_name()
        for table in tables
        for s in table.get_symbols()
        if s.is_referenced() and (s.is_global() or table is top)
    }
    for name in sorted(outside - own):
        if name in REFUSED_NAMES:
            raise InputError(f"{where}: uses {name}: {REFUSED_NAMES[name]}")
        if not hasattr(builtins, name) and name not in ("__name__", "__debug__"):
            raise InputError(f"{where}: name '{name}' is not defined; {_near(name, own)}")


def _near(name: str, own: set[str]) -> str:
    hint = did_you_mean(name, own | set(dir(builtins)))
    return hint if hint.startswith("did") else "define or import it"


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
