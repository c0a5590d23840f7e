"""What programs of this kind import, loaded once in the server, so that each fork has it already. Standard library only.

Runs when it is brought in, before its sister modules.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

NAMES = (  # noqa: SIM905  (thirty quotes would not read better)
    "array bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions functools heapq io "
    "itertools json math numbers operator queue random re statistics string struct textwrap threading traceback types "
    "typing"
).split()

fork_hooks: list[dict[str, Any]] = []
"""What these modules want to be done at forks (``random`` seeds anew, ``threading`` counts its threads). It is left to the
forks of the program: at ours it would touch 150 pages, a third of all, to no effect."""


def _load() -> None:
    register = os.register_at_fork
    os.register_at_fork = lambda **hooks: fork_hooks.append(hooks)
    try:
        for name in NAMES:
            importlib.import_module(name)
    finally:
        os.register_at_fork = register


_load()
