"""Python reward terms meet the sandbox: what a term may do, what it may not, and what becomes of one that tries."""

from __future__ import annotations

import itertools
import json
import socket
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.backends import open_backend
from sandboxes.types import CaseResult, Executor, Program, Ran, SandboxFailure
from trainer import python_parts
from trainer.diagnose import term_findings
from trainer.execution import IsolatedPrograms
from trainer.python_parts import BATCH_ROWS, TERM_FAULTS, TrainingTerms, batches_of, read_faults, run_terms, scorer
from trainer.reward import reward_view, score_rollouts
from trainer.types import REWARD_COLUMNS, InputError, RewardTerm

from .rollout_tables import healthy, table

ROWS = 24


def term(source: str, name: str = "t") -> RewardTerm:
    return RewardTerm(name=name, description="", python=source)


def per_row(expression: str) -> str:
    return f"def reward(rows):\n    return [{expression} for row in rows]\n"


def rows(count: int = ROWS) -> pa.Table:
    return table(healthy()).select([*REWARD_COLUMNS, "format_ok", "repeats"]).slice(0, count)


def run_one(executor: Executor, source: str, given_rows: pa.Table | None = None) -> python_parts.TermRun:
    return run_terms(executor, rows() if given_rows is None else given_rows, {"t": term(source)})["t"]


# --------------------------------------------------------------------------------------- values


def test_a_term_says_what_sql_says_and_what_it_cannot(executor: Executor) -> None:
    terms = {
        "sql": RewardTerm(name="sql", description="", sql="outcome * (1 - response_length / max_response_length)"),
        "same": term(per_row("row['outcome'] * (1 - row['response_length'] / row['max_response_length'])"), "same"),
        "rank": term(
            "from collections import defaultdict\n\n\n"
            "def reward(rows):\n"
            "    lengths = defaultdict(list)\n"
            "    for row in rows:\n"
            "        lengths[row['task_id']].append(row['response_length'])\n"
            "    return [sum(n > row['response_length'] for n in lengths[row['task_id']]) for row in rows]\n",
            "rank",
        ),
    }
    values, score = score_rollouts(rows(), terms, {"sql": 1.0, "rank": 0.5}, scorer(executor))
    assert list(values) == ["sql", "same", "rank"]
    np.testing.assert_array_equal(values["same"], values["sql"])
    lengths = np.array(rows()["response_length"].to_pylist()).reshape(-1, 8)
    expected = (lengths[:, None, :] > lengths[:, :, None]).sum(axis=2).flatten()
    np.testing.assert_array_equal(values["rank"], expected)
    np.testing.assert_array_equal(score, values["sql"] + 0.5 * expected)


def test_a_row_holds_what_sql_may_read_with_its_types_and_nothing_else(executor: Executor) -> None:
    types = {"family": "str", "level": "int", "outcome": "float", "truncated": "bool", "extracted": "NoneType"}
    expected = sorted([*REWARD_COLUMNS, "format_ok", "repeats"])
    source = per_row(
        f"float(sorted(row) == {expected!r} and all(type(row[k]).__name__ == v for k, v in {types!r}.items()))"
    )
    full = table(healthy()).slice(0, ROWS)  # with prompt, answer, score, advantage, ids …
    nothing = pa.nulls(ROWS, pa.string())
    full = full.set_column(full.column_names.index("extracted"), "extracted", nothing)
    values, _ = score_rollouts(full.append_column("term_x", full["score"]), {"t": term(source)}, {}, scorer(executor))
    assert values["t"].tolist() == [1.0] * ROWS


def test_without_a_sandbox_a_python_term_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"^reward/t\.toml: python: runs in a sandbox only.* --sandbox auto") as caught:
        score_rollouts(rows(), {"t": term(per_row("1.0"))}, {"t": 1.0})
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------- faults

FAULTS = {
    "endless": ("def reward(rows):\n    while True:\n        pass\n", "timeout", "no value within 1 s"),
    "sleeps at import": ("import time\ntime.sleep(60)\n" + per_row("1.0"), "timeout", "no value within 1 s"),
    "deaf": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "def reward(rows):\n    while True: pass\n",
        "timeout",
        "no value within 1 s",
    ),
    "raises": (per_row("1 / 0"), "error", "ZeroDivisionError: division by zero"),
    "paints the terminal": (
        "def reward(rows):\n    raise ValueError('\\x1b[2J\\x07\\n' + '9' * 999)\n",
        "error",
        "ValueError: ?[2J? 999",
    ),
    "column misspelt": (per_row("row['outcom']"), "error", "KeyError: 'outcom'; did you mean 'outcome'?"),
    "sys.exit": ("import sys\ndef reward(rows):\n    sys.exit(0)\n", "error", "SystemExit: 0"),
    "os._exit": ("import os\ndef reward(rows):\n    os._exit(0)\n", "crash", "ended before it gave a value"),
    "kills itself": ("import os\ndef reward(rows):\n    os.kill(os.getpid(), 9)\n", "crash", "ended before"),
    "kills all": (
        "import os\ndef reward(rows):\n    try: os.kill(-1, 9)\n    finally: os._exit(1)\n",
        "crash",
        "ended before",
    ),
    "segfault": ("import ctypes\ndef reward(rows):\n    ctypes.string_at(0)\n", "crash", "ended before"),
    "recursion": ("def reward(rows):\n    return reward(rows)\n", "error", "RecursionError"),
    "memory": ("def reward(rows):\n    return [b'x' * (1 << 30)] * 2\n", "oom", "more than"),
    "prints a flood": ("def reward(rows):\n    while True:\n        print('x' * 9999)\n", "output_limit", ""),
    "gives a flood": (per_row("'x' * 100000"), "output_limit", ""),
    "one too many": ("def reward(rows):\n    return [1.0] * 25\n", "wrong_value", "gives 25 values for 24 rows"),
    "none": ("def reward(rows):\n    pass\n", "wrong_value", "gives null, not a list of 24 numbers"),
    "a number": ("def reward(rows):\n    return 1.0\n", "wrong_value", "gives 1.0, not a list"),
    "a generator": ("def reward(rows):\n    return (1.0 for row in rows)\n", "wrong_value", "generator"),
    "nan": (per_row("float('nan')"), "wrong_value", "gives nan, no finite number for row 0"),
    "infinity": (per_row("row['outcome'] or float('-inf')"), "wrong_value", "gives -inf, no finite number for row 4"),
    "text": (per_row("'1.0'"), "wrong_value", 'gives "1.0", no finite number for row 0'),
    "truth": (per_row("row['outcome'] > 0"), "wrong_value", "gives true, no finite number"),
    "holes": (per_row("1.0 if row['outcome'] else None"), "wrong_value", "gives null, no finite number for row 4"),
    "huge": (per_row("10 ** 400"), "wrong_value", "gives a huge integer, beyond ±1e+06"),
    "large": (per_row("-1e7"), "wrong_value", "gives -10000000.0, beyond ±1e+06"),
    "a liar": ("class L(list):\n    pass\ndef reward(rows):\n    return L([1.0] * 24)\n", "wrong_value", "not a list"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_kind_counts_zero_and_leaves_the_others_alone(
    name: str, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_parts, "TERM_SECONDS", 1.0)
    source, kind, what = FAULTS[name]
    good = per_row("row['response_length'] / 2")
    ran = run_terms(executor, rows(), {"before": term(good), "bad": term(source), "after": term(good)})
    (fault,) = ran["bad"].faults
    assert (fault.kind, ran["bad"].values.tolist()) == (kind, [0.0] * ROWS)
    assert what in fault.what and "\n" not in fault.what and len(fault.what) < 500
    expected = [n / 2 for n in rows()["response_length"].to_pylist()]
    assert all(ran[n].values.tolist() == expected and not ran[n].faults for n in ("before", "after"))
    with pytest.raises(InputError, match=rf"^reward/bad\.toml: python: {kind}: .*correct the term") as caught:
        scorer(executor, must_run={"bad"})(rows(), {"bad": term(source)})
    assert "\n" not in str(caught.value)


def test_nothing_is_written_outside_and_no_network_is_there(executor: Executor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        attempts = [
            f"open({str(tmp_path / 'taken')!r}, 'w').write('x')",
            f"open({str(Path(__file__).parent / 'taken')!r}, 'w').write('x')",
            "open('/usr/lib/taken', 'w').write('x')",
            "open('/etc/taken', 'w').write('x')",
            f"open({str(Path(__file__))!r}).read()",
            f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 0.5)",
            "socket.create_connection(('1.1.1.1', 53), 0.5)",
            "os.environ['PYTEST_CURRENT_TEST']",
            "os.kill(os.getppid(), 0) or os.kill(os.getppid(), 9) or time.sleep(0.1) or os.kill(os.getppid(), 0)",
        ]
        body = "".join(f"    try:\n        {a}\n        done.append({i}.0)\n    except Exception: pass\n"
                       for i, a in enumerate(attempts[:-1]))  # fmt: skip
        source = f"import os, socket, time\ndef reward(rows):\n    done = []\n{body}    return [float(len(done))] * len(rows)\n"
        ran = run_one(executor, source)
        assert (ran.faults, ran.values.tolist()) == ((), [0.0] * ROWS)
        with pytest.raises(TimeoutError):
            server.accept()
    assert not list(tmp_path.iterdir()) and not (Path(__file__).parent / "taken").exists()


def test_a_term_that_attacks_its_worker_harms_only_itself(executor: Executor) -> None:
    source = (
        "import os, sys\n\n\ndef reward(rows):\n"
        "    for fd in range(3, 300):\n        try: os.write(fd, b'\\0' * 64)\n        except OSError: pass\n"
        "    for pid in (1, os.getppid()):\n        try: os.kill(pid, 9)\n        except OSError: pass\n"
        "    return [1.0] * len(rows)\n"
    )
    for _ in range(2):
        run_one(executor, source)
        assert run_one(executor, per_row("2.0")).values.tolist() == [2.0] * ROWS


# ------------------------------------------------------------------------- what terms may not know


def test_with_visible_tests_nothing_that_hidden_tests_know_reaches_a_term(executor: Executor) -> None:
    """Two worlds that differ in everything the hidden tests say: a term that reads all it can get cannot tell them
    apart, and in the world of hidden tests it can."""
    digest = "import json, zlib\n\n\n" + per_row("float(zlib.crc32(json.dumps(row, sort_keys=True).encode()) % 99991)")
    random = np.random.default_rng(0)

    def world(change: bool) -> pa.Table:
        full = table(healthy()).slice(0, ROWS)
        hidden = {
            "outcome": full["outcome"].to_numpy(),
            "tests_passed": np.full(ROWS, 0.25),
            "runtime_error": np.zeros(ROWS),
            "timed_out": np.zeros(ROWS),
            "answer": np.array(["a"] * ROWS),
            "score": np.zeros(ROWS),
        }
        if change:
            hidden |= {name: 1 - random.permutation(v) for name, v in hidden.items() if name != "answer"}
            hidden["answer"] = np.array(["b"] * ROWS)
        visible = {"visible": np.arange(ROWS) % 2 * 1.0, "visible_passed": np.full(ROWS, 0.5)}
        for name, column in (hidden | visible).items():
            full = full.drop_columns([name]) if name in full.column_names else full
            full = full.append_column(name, pa.array(column))
        return full

    def seen(full: pa.Table, tests: Any) -> list[float]:
        values, _ = score_rollouts(reward_view(full, tests), {"t": term(digest)}, {}, scorer(executor))
        return list(values["t"].tolist())

    one, other = world(False), world(True)
    assert seen(one, "visible") == seen(other, "visible")
    assert seen(one, "hidden") != seen(other, "hidden")
    view = reward_view(one, "visible")
    assert view["outcome"].to_pylist() == one["visible"].to_pylist()
    assert view["tests_passed"].to_pylist() == one["visible_passed"].to_pylist()
    assert {"answer", "visible", "score", "prompt"}.isdisjoint(view.column_names)


def test_no_state_survives_a_batch_and_equal_rows_give_equal_values(executor: Executor) -> None:
    """The term counts its calls in every place it can reach and adds what it finds to its values."""
    source = (
        "import builtins, json, math, os, random, tempfile\n"
        "CALLS = []\n"
        "FILES = ['calls', '/tmp/calls', '/task/calls', '/dev/shm/calls', '/var/tmp/calls', '/run/calls']\n\n\n"
        "def reward(rows):\n"
        "    found = len(CALLS) + getattr(builtins, 'calls', 0) + getattr(math, 'calls', 0) + len(json.__dict__.get('calls', ''))\n"
        "    CALLS.append(1)\n"
        "    builtins.calls = math.calls = 1\n"
        "    json.calls = 'x'\n"
        "    os.environ['calls'] = str(int(os.environ.get('calls', 0)) + 1)\n"
        "    found += int(os.environ['calls']) - 1\n"
        "    for path in FILES:\n"
        "        try:\n"
        "            found += os.path.exists(path)\n"
        "            open(path, 'a').write('x')\n"
        "        except OSError:\n"
        "            pass\n"
        "    order = list({row['response'] for row in rows})\n"
        "    return [found + random.random() + order.index(row['response']) for row in rows]\n"
    )
    halves = [rows().slice(0, 16), rows().slice(8, 16)]
    first = [run_one(executor, source, half) for half in halves]
    again = [run_one(executor, source, half) for half in reversed(halves)][::-1]
    with closing(IsolatedPrograms(open_backend("auto").name, "tests")) as fresh:
        elsewhere = [run_one(fresh, source, half) for half in halves]
    for a, b, c in zip(first, again, elsewhere, strict=True):
        assert not a.faults and a.values.tolist() == b.values.tolist() == c.values.tolist()
    assert max(first[0].values) < 16  # found nothing of its own


# ------------------------------------------------------------------------------------- training


class Counting:
    """The executor of a test, with a count of programs."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.programs = self.calls = 0

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        self.programs += len(programs)
        self.calls += 1
        return self.inner.run(programs)

    def close(self) -> None:
        """It belongs to another."""


def test_three_faults_in_a_row_switch_a_term_off_and_every_fault_is_on_record(
    executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / TERM_FAULTS).write_text("of an earlier attempt\n")
    counting = Counting(executor)
    terms = {"good": term(per_row("1.0"), "good"), "moody": term(per_row("1.0 / row['outcome']"), "moody")}
    solved, unsolved = rows().slice(0, 4), rows().slice(4, 4)
    training = TrainingTerms(counting, tmp_path)
    assert read_faults(tmp_path / TERM_FAULTS) == []
    for step, batch in enumerate((unsolved, unsolved, solved, unsolved, unsolved, unsolved, solved), start=1):
        values = training.values(step, batch, terms)
        assert values["good"].tolist() == [1.0] * 4
        assert values["moody"].tolist() == [float(step == 3)] * 4
    assert (counting.calls, counting.programs) == (7, 13)
    faults = read_faults(tmp_path / TERM_FAULTS)
    assert [(f.step, f.off) for f in faults] == [(1, False), (2, False), (4, False), (5, False), (6, True)]
    assert {(f.term, f.kind, f.what) for f in faults} == {
        ("moody", "error", "ZeroDivisionError: float division by zero")
    }
    (finding,) = term_findings([tmp_path / TERM_FAULTS, tmp_path / "none.jsonl"])
    assert (finding.diagnostic, finding.kind, finding.severity, finding.value) == (
        "reward/moody", "validity", "critical", 5.0,
    )  # fmt: skip
    assert finding.error == "error: ZeroDivisionError: float division by zero"
    assert "error × 5; switched off from step 6 on" in finding.description
    for weights, severity in (({"moody": 0.2}, "critical"), ({"moody": 0.0}, "info"), ({}, "info")):
        assert [f.severity for f in term_findings([tmp_path / TERM_FAULTS], weights)] == [severity]
    # An attempt that goes on after step 5 knows what came before, and drops what came after.
    resumed = TrainingTerms(counting, tmp_path, {"moody": 2}, step=5)
    assert [f.step for f in read_faults(tmp_path / TERM_FAULTS)] == [1, 2, 4, 5]
    resumed.values(6, unsolved, terms)
    assert [(f.step, f.off) for f in read_faults(tmp_path / TERM_FAULTS)][-1] == (6, True)


def test_a_damaged_record_of_faults_is_named_and_an_unfinished_line_is_not(tmp_path: Path) -> None:
    file = tmp_path / TERM_FAULTS
    line = '{"step": 1, "term": "t", "kind": "oom", "what": "w", "off": false}\n'
    file.write_text(line + '{"step": 2, "te')
    assert [f.kind for f in read_faults(file)] == ["oom"]
    file.write_text(line + "x\n")
    with pytest.raises(InputError, match=r"term_faults\.jsonl: line 2: .*delete the line"):
        read_faults(file)


class Flaky(Counting):
    """Loses the programs of its first ``losses`` calls, as a sandbox that breaks does."""

    def __init__(self, inner: Executor, losses: int) -> None:
        super().__init__(inner)
        self.losses = losses

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        if self.calls < self.losses:
            self.calls += 1
            lost = (CaseResult(status="missing"),)
            return [Ran(kind="infra_failure", cases=lost, error="the engine is gone") for _ in programs]
        return super().run(programs)


def test_our_own_failure_is_repeated_once_and_is_never_the_terms_fault(executor: Executor, tmp_path: Path) -> None:
    terms = {"t": term(per_row("1.0"))}
    once = TrainingTerms(Flaky(executor, 1), tmp_path)
    assert once.values(1, rows(), terms)["t"].tolist() == [1.0] * ROWS
    with pytest.raises(SandboxFailure, match="the engine is gone"):
        TrainingTerms(Flaky(executor, 2), tmp_path).values(1, rows(), terms)
    assert not (tmp_path / TERM_FAULTS).exists()


# -------------------------------------------------------------------------------------- batches


def test_batches_run_apart_and_only_the_faulty_one_counts_zero(executor: Executor) -> None:
    source = "def reward(rows):\n    assert any(row['outcome'] for row in rows)\n    return [len(rows)] * len(rows)\n"
    notes: list[str] = []
    values = scorer(executor, breaks=[4, 8], notes=notes)(rows(), {"t": term(source)})["t"]
    assert values.tolist() == [4.0] * 4 + [0.0] * 4 + [16.0] * 16
    assert notes == ["reward/t.toml counts 0 in 1 of 3 batches (error: AssertionError)"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.sets(st.integers(1, 11), max_size=4))
def test_batches_cover_all_rows_cut_no_group_and_keep_within_bounds(sizes: list[int], broken: set[int]) -> None:
    ids = [f"task{i}" for i, size in enumerate(sizes) for _ in range(size)]
    starts = [0, *itertools.accumulate(sizes)]
    breaks = [starts[i] for i in sorted(broken) if i < len(sizes)]
    batches = batches_of(ids, breaks)
    assert [start for start, _ in batches] == [0, *(stop for _, stop in batches[:-1])] and batches[-1][1] == len(ids)
    assert {stop for _, stop in batches} <= set(starts) and set(breaks) <= {start for start, _ in batches}
    assert all(stop - start <= BATCH_ROWS for start, stop in batches)


def test_a_long_reply_of_any_text_arrives_whole(executor: Executor) -> None:
    replies = ["\U0001f600 é \x00 \\ \" ' {" * 2000, "", "\n\r\u2028", json.dumps({"a": [1]})]
    given_rows = rows(4).set_column(REWARD_COLUMNS.index("response"), "response", pa.array(replies))
    found = run_one(executor, "import zlib\n" + per_row("zlib.crc32(row['response'].encode()) % 9973"), given_rows)
    assert found.values.tolist() == [zlib.crc32(r.encode()) % 9973 for r in replies]
