"""What a program's run becomes as a grade."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from sandboxes.types import CaseResult, Executor, Program, Ran
from trainer.domains.code import lcb, taco
from trainer.domains.code.grading import grade, program
from trainer.types import Case
from trainer.types import Tests as Suite

ONE = Suite(
    entry="f", visible=(Case(given="[1]", expected="2"),), hidden=(Case(given="[5]", expected="6"),), time_s=1.0
)


def hidden(*cases: tuple[str, str], **fields: object) -> Suite:
    return Suite.model_validate({"hidden": [{"given": g, "expected": e} for g, e in cases], "time_s": 1.0, **fields})


@pytest.mark.parametrize(
    ("source", "visible", "decides", "error"),
    [
        ("def f(x): return x + 1", "pass", "pass", ""),
        ("def f(x): return x + 1.0", "pass", "pass", ""),
        ("def f(x): return 2", "pass", "wrong", ""),
        ("def f(x): return 2 + 0 / (x - 5)", "pass", "error", "ZeroDivisionError: division by zero"),
        ("def f(x) return 1", "error", "error", "SyntaxError: "),
        ("def f(x): return 'a' * 10**6 if x == 5 else 2", "pass", "output_limit", ""),
        ("def f(x):\n  while x == 5: pass\n  return 2", "pass", "timeout", ""),
        ("import os\ndef f(x):\n  return os._exit(0) if x == 5 else 2", "pass", "missing", ""),
        ("def f(x): return [0] * 10**10", "oom", "oom", "MemoryError"),
        ("", "error", "error", "NameError: "),
        (None, "missing", "missing", "no program"),
        ("s = '\ud800'", "missing", "missing", "not UTF-8 text"),
    ],
)
def test_each_end_has_its_verdict(
    executor: Executor, source: str | None, visible: str, decides: str, error: str
) -> None:
    (found,) = grade(executor, [(ONE, source)])
    assert (found.visible, found.hidden) == ((visible,), (decides,))
    assert found.error.startswith(error) and "\n" not in found.error
    assert found.kind != "infra_failure"


def test_jobs_of_all_kinds_are_graded_in_order(executor: Executor) -> None:
    script = hidden(("2\n", "4\n"), ("3\n", "9\n"), mode="stdin")
    jobs = [
        (ONE, "def f(x): return x + 1"),
        (script, "print(int(input()) ** 2)"),
        (ONE, None),
        (script, "print(int(input()) * 2, end=' \\n\\n')"),
        (ONE, "def f(x): return x"),
    ]
    assert [g.hidden for g in grade(executor, jobs)] == [
        ("pass",),
        ("pass", "pass"),
        ("missing",),
        ("pass", "wrong"),
        ("wrong",),
    ]
    assert grade(executor, []) == []


def test_a_checker_decides_what_is_not_equal_and_sees_nothing_else(executor: Executor) -> None:
    checker = (
        "import json\n"
        "def accept(cases):\n"
        "    assert all(e != o for _, e, o in cases)\n"
        "    return [sorted(json.loads(o)) == json.loads(e) and json.loads(g)[0] > 0 for g, e, o in cases]\n"
    )
    tests = hidden(("[1]", "[1,2]"), ("[2]", "[2,3]"), ("[3]", "[3,4]"), ("[0]", "[0,1]"), entry="f", checker=checker)
    sources = ["def f(x): return [x, x + 1] if x == 2 else [x + 1, x]", "def f(x): return [x, x]", "def f(x): return 3"]
    verdicts = [g.hidden for g in grade(executor, [(tests, s) for s in sources])]
    assert verdicts[0] == ("pass", "pass", "pass", "wrong")
    assert verdicts[1] == verdicts[2] == ("wrong",) * 4  # the last one breaks the checker
    for broken in (
        "def accept(cases): return True",
        "def accept(cases): return [1] * len(cases)",
        "accept = 3",
        "import os; os._exit(0)",
    ):
        (found,) = grade(executor, [(tests.model_copy(update={"checker": broken}), "def f(x): return [x + 1, x]")])
        assert found.hidden == ("wrong",) * 4 and found.kind == "exit"


def test_tagged_arguments_arrive_as_what_they_are(executor: Executor) -> None:
    given = '[{"tuple":[1,{"set":[2]}]},{"dict":[[5,"a"]]}]'
    tests = hidden((given, '{"tuple":["tuple","set","dict",5]}'), entry="f")
    decode = "def decode(x): return 0\n"  # a name of ours that programs use too
    source = decode + "def f(x, y): return type(x).__name__, type(x[1]).__name__, type(y).__name__, *y"
    method = "class S:\n    def f(self, x, y): return type(x).__name__, type(x[1]).__name__, type(y).__name__, *y"
    both = [(tests, source), (tests.model_copy(update={"entry": "S.f"}), method)]
    assert [g.hidden for g in grade(executor, both)] == [("pass",)] * 2


def test_published_rows_run_with_what_their_harness_imports(executor: Executor) -> None:
    functional = [{"input": "[3, 1]\n2", "output": "[[1, 3], 4.0]", "testtype": "functional"}]
    leet = lcb.task(
        {
            "question_content": "Sort.", "metadata": '{"func_name": "f"}', "public_test_cases": json.dumps(functional),
            "starter_code": "class Solution:\n    def f(self, x: List[int], p: int):\n", "private_test_cases": "[]",
        }
    )  # fmt: skip
    contest = taco.task(
        {
            "question": "Root.",
            "input_output": json.dumps({"inputs": ["2\n", "9\n"], "outputs": ["1.41421356\n", "3\n"]}),
        }
    )
    assert leet.tests is not None and contest.tests is not None
    right = "from __future__ import annotations\nclass Solution:\n    def f(self, x: List[int], p: int):\n        return sorted(x), pow(p, 2, 10)\n"
    jobs = [
        (leet.tests, right),
        (leet.tests, right.replace("2, 10", "3")),
        (contest.tests, "print(sqrt(int(stdin.readline())))"),
        (contest.tests, "print(round(sqrt(int(input())), 3))"),
    ]
    assert [(*g.visible, *g.hidden) for g in grade(executor, jobs)] == [
        ("pass",),
        ("wrong",),
        ("pass",) * 2,
        ("wrong", "pass"),
    ]


class Scripted:
    """An executor whose machinery fails where it is told to; what it gives otherwise is fixed."""

    def __init__(self, fails: Sequence[bool]) -> None:
        self.fails = iter(fails)

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        return [self._one(p, next(self.fails)) for p in programs]

    def _one(self, p: Program, fails: bool) -> Ran:
        if fails:
            return Ran("infra_failure", tuple(CaseResult("missing") for _ in p.cases), error="engine gone")
        return Ran("exit", tuple(CaseResult("ok", "0") for _ in p.cases))

    def close(self) -> None: ...


def test_a_failure_of_ours_is_passed_on_and_is_no_verdict() -> None:
    checked = ONE.model_copy(update={"checker": "def accept(cases): return [True]"})
    first, second, third = grade(Scripted([True, False, False, True]), [(ONE, "x"), (ONE, "y"), (checked, "z")])
    assert (first.kind, first.visible, first.hidden, first.error) == (
        "infra_failure",
        ("missing",),
        ("missing",),
        "engine gone",
    )
    assert (second.kind, second.hidden) == ("exit", ("wrong",))
    assert (third.kind, third.hidden, third.error) == ("infra_failure", ("missing",), "checker: engine gone")


def test_expected_outputs_are_no_part_of_what_is_run() -> None:
    tests = hidden(("[1]", '"secret"'), entry="f", prelude="import math\n")
    assert "secret" not in repr(program(tests, "def f(x): return 1"))
