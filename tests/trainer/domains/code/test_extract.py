"""Which program a reply holds. Each form once, and then texts made to hurt."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.domains.code.extract import DEEPEST, LONGEST, answered, fenced, parsed, program_in

F = "def f(x):\n    return x + 1\n"
G = "def f(x):\n    return x + 2\n"
READER = "print(int(input()) + 1)\n"
HEAD = 'import math\n\n\ndef f(x: int) -> int:\n    """Add one.\n\n    >>> f(1)\n    2\n    """\n'


def block(text: str, label: str = "python", fence: str = "```") -> str:
    return f"{fence}{label}\n{text}{fence}\n"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        (F, F),
        (block(F), F),
        (block(F, "py"), F),
        (block(F, "Python3"), F),
        (block(F, ""), F),
        (block(F, fence="~~~~"), F),
        (f"Sure!\n\n{block(F)}\nIt adds one.", F),
        (f"So: ```python\n{F}```", F),
        (f"```python\n{F}", F),  # cut at the limit
        (f"```python\n{F.rstrip()}```", F),
        (f"1. First:\n\n   ```python\n   {F.rstrip().replace(chr(10), chr(10) + '   ')}\n   ```\n", F),
        (block(G) + "No, wrong. Better:\n" + block(F), F),
        (block(F) + "Use it:\n" + block("print(f(1))\n"), F),
        (block(F) + "It prints\n" + block("2\n", "text"), F),
        (block(F) + "Output:\n" + block("2\n", ""), F),
        (block(F) + block("def f(x) return x\n"), F),
        (block(F, "cpp"), None),
        (block("def g(x):\n    return x\n"), None),
        ("<think>" + block(G) + "hm</think>" + block(F), F),
        ("perhaps " + block(G) + "</think>" + block(F), F),  # the opening is part of the prompt
        ("<think>" + block(G), None),
        (block(F) + "<think>" + block(G), F),
        ("\ufeff" + block(F), F),
        (block(F).replace("\n", "\r\n"), F),
        (block(F.replace("    ", "\t")), F.replace("    ", "\t")),
        (f"Here you are:\n\n{F}\nThis adds one, you see.", F + "\n"),
        ("f = lambda x: x + 1", "f = lambda x: x + 1"),
        ("if True:\n    def f(x):\n        return x", "if True:\n    def f(x):\n        return x"),
        ("I cannot do that.", None),
        ("", None),
        ("```", None),
        ("```python\n```", None),
        (block(F + "\0"), None),
        (block(F + "s = '\ud800'\n"), None),
        ("x = 1", None),
    ],
)
def test_the_program_of_a_reply_that_must_define_f(reply: str, program: str | None) -> None:
    assert program_in(reply, "f") == program


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        (READER, READER),
        (block(READER) + "For the input\n" + block("5\n", "") + "it prints\n" + block("6\n", ""), READER),
        (block(READER) + "or test it:\n" + block("print(solve(5))\n"), READER),
        (block("print(6)\n"), "print(6)\n"),
        (block("6\n", ""), None),
        (f"My program:\n\nimport sys\n{READER}", f"import sys\n{READER}\n"),
    ],
)
def test_the_program_of_a_reply_that_must_read_its_input(reply: str, program: str | None) -> None:
    assert program_in(reply, mode="stdin") == program


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("    return x + 1\n", 2),
        ("    y = x\n\n    return y + 1", 2),
        ("    return x + 1\n\n\nThat is all: f adds one.", 2),
        ("    return x + 1\n\ndef g(y):\n    return (y", 2),
        (block("    return x + 1\n"), 2),
        (block("return x + 1\n"), 2),
        (block("for _ in range(1):\n    x += 1\nreturn x\n"), 2),
        (block(HEAD + "    return x + 1\n"), 2),
        (block("def f(x):\n    return int(math.floor(x + 1.5))\n"), 2),
        ("return x + 1", None),  # prose could look like this
        ("    # nothing\n", None),
        ("    Let me think.\n", None),
    ],
)
def test_a_body_follows_the_prelude_with_its_indentation(reply: str, value: int | None) -> None:
    program = program_in(reply, "f", prelude=HEAD)
    if value is None:
        assert program is None
        return
    space: dict[str, Callable[[int], int]] = {}
    exec(HEAD + (program or ""), space)  # text of this file
    assert space["f"](1) == value


def test_a_method_is_asked_for_with_its_class_and_a_plain_function_gets_one() -> None:
    method = "class Solution:\n    def f(self, x):\n        return x + 1\n"
    assert program_in(block(method), "Solution.f") == method
    assert program_in(block("class Solution:\n    pass\n\ndef g(): ...\n"), "Solution.f") is None
    adapted = program_in(block(F), "Solution.f")
    space: dict[str, Callable[[], object]] = {}
    exec(adapted or "", space)  # text of this file
    assert space["Solution"]().f(1) == 2  # type: ignore[attr-defined]


MARKS = [
    "```",
    "```python\n",
    "~~~",
    "\n",
    "<think>",
    "</think>",
    "def f(x):\n",
    "    return x\n",
    "(",
    "\r",
    "\0",
    "'''",
    "a",
]


@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=25).map("".join), st.sampled_from(["", HEAD]))
def test_what_is_found_parses_and_defines_the_entry(reply: str, prelude: str) -> None:
    program = program_in(reply, "f", prelude=prelude)
    if program is not None:
        assert any(getattr(n, "name", "") == "f" for n in ast.parse(prelude + program).body) or "f" in program
    for found in fenced(answered(reply)):
        assert found.text.endswith("\n")
    program_in(reply, mode="stdin")


HOSTILE = {
    "fences": "```\n" * 250_000,
    "openings": "```python\n" + "```python x\n" * 80_000,
    "one line": "`" * 1_000_000,
    "nearly fences": "``` a" + "b" * 999_000 + "`",
    "spaces": " " * 999_999 + "`",
    "spaces and fence": (" " * 500_000 + "```") * 2,
    "thinking": "<think>" * 150_000,
    "thought": "</think>" * 120_000,
    "brackets": "(" * 1_000_000,
    "block of brackets": block("(" * 60_000),
    "comparisons": block("a<" * 30_000),
    "minus": block("f = " + "-" * 60_000 + "1\n"),
    "sums": block("f = " + "1+" * 30_000 + "1\n"),
    "dots": block("f = a" + ".a" * 30_000 + "\n"),
    "decorators": block("@a\n" * 20_000),
    "indents": block("".join(" " * i + "if 1:\n" for i in range(300))),
    "else if": block("if a: pass\n" + "elif a: pass\n" * 4_000),
    "lambdas": block("f = " + "lambda:" * 8_000 + "1\n"),
    "texts": block("'a' " * 15_000),
    "many small blocks": block("def g(): a<\n") * 40_000,
    "code lines": "def f(\n" * 150_000,
    "indented": "    (\n" * 150_000,
}


# Reading on from each of a million places takes hours, one reading a second or two.
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_million_hostile_characters_cost_little(name: str) -> None:
    for mode, prelude in (("call", ""), ("call", HEAD), ("stdin", "")):
        program_in(HOSTILE[name], "f", mode, prelude)  # type: ignore[arg-type]


def test_the_parser_survives_all_that_it_is_given() -> None:
    """Deep texts have crashed Python's parser: in a process of its own, on a stack of half the usual size."""
    script = (
        "import sys, threading\n"
        "from tests.trainer.domains.code.test_extract import HOSTILE\n"
        "from trainer.domains.code.extract import LONGEST, parsed\n"
        "threading.stack_size(4 << 20)\n"
        "def work():\n"
        "    for text in HOSTILE.values():\n"
        "        parsed(text.removeprefix('```python\\n')[:LONGEST])\n"
        "    print('alive')\n"
        "t = threading.Thread(target=work); t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n", done.stderr


def test_what_is_too_long_or_too_deep_is_no_program() -> None:
    assert parsed("x = " + "(" * DEEPEST + "1" + ")" * DEEPEST) is not None
    assert parsed("x = " + "(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1)) is None
    assert parsed("#" * LONGEST) is not None and parsed("#" * (LONGEST + 1)) is None
    assert program_in(block(F) + block("#" * LONGEST), "f") is None
