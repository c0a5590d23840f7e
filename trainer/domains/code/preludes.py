"""What programs of the published formats may use without importing it, because the benchmarks' harnesses put it before
every program (LiveCodeBench ``testing_util.import_string``, TACO ``synthesize_std_code``; numpy aside)."""

from __future__ import annotations

_STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "typing",
)  # fmt: skip
_NAMED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "time", "fractions",
)  # fmt: skip

CONTEST = "\n".join(
    (
        *(f"from {name} import *" for name in _STARRED),
        # Undoes what the stars have covered: open, pow, and whatever else is a builtin.
        "from builtins import *",
        *(f"import {name}" for name in _NAMED),
        "sys.setrecursionlimit(50000)",
        "stdin, stdout = sys.stdin, sys.stdout",
        "",
    )
)
