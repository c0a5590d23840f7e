"""What the text of a program shows."""

from __future__ import annotations

import pytest

from trainer.domains.code.features import FEATURES, Structure, features, structure
from trainer.domains.code.types import Grade

LOOP = "def f(x):\n t=0\n for a in x:\n  if a>2:\n   t+=a\n return t"
CASES = "def f(x):\n if x==[1,2]:\n  return 3\n return 0"


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (LOOP, Structure(compiles=1, loops=1, branches=1)),
        (CASES, Structure(compiles=1, special_cases=1, branches=1)),
        ("def f(x):\n return 7", Structure(compiles=1, literal_only=1)),
        ("def f(x):\n return sum(a*a for a in x)", Structure(compiles=1, loops=1)),
        ("print(int(input())*2)", Structure(compiles=1)),
        ("print(42)", Structure(compiles=1, literal_only=1)),
        ("class S:\n def f(self, x):\n  return 1", Structure(compiles=1, literal_only=1)),
        ("def f(x):\n return (", Structure()),
        ("(" * 5000, Structure()),
        ("a" * 30_000, Structure()),
        ("x = '\0'", Structure()),
    ],
)
def test_structure(program: str, shape: Structure) -> None:
    assert structure(program) == shape


def test_every_reply_has_all_features() -> None:
    passed = Grade(
        kind="exit", visible=("pass", "wrong"), hidden=("pass", "error", "pass", "timeout"), error="KeyError: 1"
    )
    found = features("a reply", LOOP, passed)
    assert tuple(sorted(found)) == tuple(sorted(FEATURES))
    assert (found["tests_passed"], found["visible_passed"]) == (0.5, 0.5)
    assert (found["runtime_error"], found["timed_out"], found["program_lines"]) == (1.0, 1.0, 6.0)
    nothing = features("", None, Grade(kind="exit", visible=("missing",), hidden=("missing",)))
    assert set(nothing) == set(FEATURES) and nothing["format_ok"] == 0.0 and nothing["compiles"] == 0.0
    broken = features("(", "(", Grade(kind="exit", visible=("error",), hidden=("error",), error="SyntaxError"))
    assert broken["runtime_error"] == 0.0
