from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.types import Executor
from trainer import diagnose, python_diagnostics
from trainer.diagnose import VIEWS, health_report, trends
from trainer.evidence import write_step
from trainer.groups import groups_with_spread
from trainer.python_diagnostics import rollout_file
from trainer.sql import open_parquet, select
from trainer.types import Diagnostic, InputError

from .rollout_tables import GROUPS, STEPS, Columns, N, group_number, healthy, table, write


def diagnostic(metric: str, **fields: object) -> Diagnostic:
    defaults = {"name": "d", "layer": "signal", "description": "d", "warn": 0.3, "critical": 0.5}
    return Diagnostic.model_validate({**defaults, "metric": metric, **fields})


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rollouts"))


@pytest.mark.parametrize(
    ("value", "above", "severity", "line"),
    [
        (0.3, True, "ok", 0.3),
        (0.31, True, "warn", 0.3),
        (0.5, True, "warn", 0.3),
        (0.51, True, "critical", 0.5),
        (-0.3, False, "ok", -0.3),
        (-0.31, False, "warn", -0.3),
        (-0.51, False, "critical", -0.5),
    ],
)
def test_lines_are_crossed_strictly_on_the_side_of_trouble(
    rollouts: Path, value: float, above: bool, severity: str, line: float
) -> None:
    sign = 1 if above else -1
    d = diagnostic(f"SELECT {value}", above=above, warn=sign * 0.3, critical=sign * 0.5)
    (finding,) = health_report("v1", [rollouts], {"d": d}, {}, []).findings
    assert (finding.severity, finding.line, finding.value) == (severity, line, value)


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        ("SELECT avg(no_such_column) FROM rollouts", "no_such_column"),
        ("SELECT 1, 2", "1 × 2 values"),
        ("SELECT outcome FROM rollouts", "2 × 1 values"),
        ("SELECT 'high'", "not a number"),
        ("SELECT NULL", "no value"),
        ("SELECT 'nan'::DOUBLE", "nan"),
        ("DROP TABLE rollouts", "SELECT"),
        ("SELECT random()", "volatile"),
    ],
)
def test_a_failing_diagnostic_is_a_finding_and_the_others_go_on(rollouts: Path, metric: str, error: str) -> None:
    both = {"bad": diagnostic(metric, name="bad"), "good": diagnostic("SELECT 0.4 FROM rollouts LIMIT 1", name="good")}
    bad, good = health_report("v1", [rollouts], both, {}, []).findings
    assert (
        (bad.severity, bad.value, bad.evidence) == ("info", None, ()) and error in bad.error and "\n" not in bad.error
    )
    assert (good.severity, good.error) == ("warn", "")


def test_evidence_is_at_most_five_ids_and_its_failure_keeps_the_severity(rollouts: Path) -> None:
    many = diagnostic("SELECT 1", evidence="SELECT step, rollout_id FROM rollouts ORDER BY rollout_id", name="many")
    broken = diagnostic("SELECT 1", evidence="SELECT x FROM rollouts", name="broken")
    quiet = diagnostic("SELECT 0", evidence="SELECT rollout_id FROM rollouts", name="quiet")
    found = health_report("v1", [rollouts], {d.name: d for d in (many, broken, quiet)}, {}, []).findings
    assert found[0].evidence == tuple(f"r{i:06d}" for i in range(5))
    assert (found[1].severity, found[1].evidence) == ("critical", ()) and '"x"' in found[1].error
    assert found[2].evidence == ()


def test_scores_of_version_and_parent_are_tables(rollouts: Path) -> None:
    gain = "SELECT s.value - p.value FROM scores s JOIN parent_scores p USING (name) WHERE name = 'gate/mean'"
    diagnostics = {"gain": diagnostic(gain, name="gain")}
    report = health_report("v2", [rollouts], diagnostics, {"gate/mean": 0.7}, [], parent_scores={"gate/mean": 0.2})
    assert report.findings[0].value == pytest.approx(0.5) and report.scores == {"gate/mean": 0.7}
    alone = health_report("v2", [rollouts], diagnostics, {"gate/mean": 0.7}, [])
    assert alone.findings[0].error == "no value for these rollouts"


def test_quarters_are_per_seed(tmp_path: Path) -> None:
    def second(c: Columns) -> None:
        c["seed"] = c["seed"] + 1
        c["step"] = c["step"] // 2  # half as many steps

    long = write(tmp_path / "s0")
    short = write(tmp_path / "s1", second)
    spans = "SELECT seed, quarter, min(step) AS first, max(step) AS last FROM rollouts GROUP BY ALL ORDER BY ALL"
    files = [*sorted(long.glob("*.parquet")), *sorted(short.glob("*.parquet"))[: STEPS // 2]]
    with open_parquet("stored", files, copy={"stored"}, views=VIEWS) as con:
        rows = [tuple(r.values()) for r in select(con, spans).to_pylist()]
        early, late_rows = (
            {r["seed"]: r["n"] for r in select(con, f"SELECT seed, count(*) AS n FROM {v} GROUP BY seed").to_pylist()}
            for v in ("early", "late")
        )
    assert rows == [
        (0, 1, 0, 3),
        (0, 2, 4, 7),
        (0, 3, 8, 11),
        (0, 4, 12, 15),
        (1, 1, 0, 1),
        (1, 2, 2, 3),
        (1, 3, 4, 5),
        (1, 4, 6, 7),
    ]
    assert early == late_rows == {0: 4 * GROUPS * N, 1: 2 * 2 * GROUPS * N}


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_dead_means_the_same_in_sql_and_in_training(seed: int) -> None:
    random = np.random.default_rng(seed)
    c = healthy()
    scale = random.choice([1e-9, 1e-6, 1e-3, 1.0, 1e6], size=STEPS * GROUPS)[group_number(c)]
    base = random.choice([0.0, 1.0, -3.0, 1e6], size=STEPS * GROUPS)[group_number(c)]
    c["score"] = base + scale * random.integers(0, 2, len(base))
    with tempfile.TemporaryDirectory() as folder:
        file = write_step(Path(folder), 0, table(c))
        with open_parquet("stored", [file], copy={"stored"}, views=VIEWS) as con:
            dead = select(con, "SELECT dead FROM groups ORDER BY group_id")["dead"].to_pylist()
    assert dead == (~groups_with_spread(c["score"], group_number(c))).tolist()


def test_a_page_that_cannot_be_read_names_the_directory(tmp_path: Path) -> None:
    directory = write(tmp_path / "rollouts")
    file = directory / "step-000001.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)  # footer and magic stay intact
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"rollouts: rollout files of v1: .*restore") as caught:
        health_report("v1", [directory], {}, {}, [])
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------- trends


def metrics_file(path: Path, values: list[float], name: str = "critic/score/mean") -> Path:
    path.write_text("".join(json.dumps({"step": i, "data": {name: v}}) + "\n" for i, v in enumerate(values)))
    return path


def test_trends_are_means_over_parts_then_seeds(tmp_path: Path) -> None:
    one = metrics_file(tmp_path / "a.jsonl", [float(i) for i in range(20)])
    two = metrics_file(tmp_path / "b.jsonl", [100.0] * 40)
    expected = tuple((2 * part + 0.5 + 100) / 2 for part in range(10))
    assert trends([one, two])["critic/score/mean"] == pytest.approx(expected)


def test_a_short_training_has_as_many_parts_as_lines(tmp_path: Path) -> None:
    short = metrics_file(tmp_path / "a.jsonl", [1.0, 2.0, 3.0])
    long = metrics_file(tmp_path / "b.jsonl", [0.0] * 30)
    assert trends([short, long]) == {"critic/score/mean": (0.5, 1.0, 1.5)}
    assert trends([]) == {}


def test_what_is_no_number_or_not_always_there_has_no_curve(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [{"step": i, "data": {"x": i, "name": "text", **({"rare": 1.0} if i == 3 else {})}} for i in range(12)]
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 12, "da')
    assert list(trends([file])) == ["x"]


@pytest.mark.parametrize("line", ["not json", "[1]", '{"step": 1}', '{"step": 1, "data": 3}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = metrics_file(tmp_path / "a.jsonl", [1.0])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl: line 2: .*delete"):
        trends([file])
    with pytest.raises(InputError, match=r"none\.jsonl: no such metrics file"):
        trends([tmp_path / "none.jsonl"])


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=200))
def test_a_trend_lies_between_the_extremes(values: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        curve = trends([metrics_file(Path(folder) / "m.jsonl", values)])["critic/score/mean"]
    assert len(curve) == min(10, len(values))
    assert min(values) - 1e-9 <= min(curve) and max(curve) <= max(values) + 1e-9


# ------------------------------------------------------------------------------------- Python


def isolated(source: str, **fields: object) -> Diagnostic:
    return diagnostic("", python=source, **fields)


LATE_MEAN = (
    "import statistics\n\n\n"
    "def metric(rollouts):\n"
    "    return statistics.fmean(row['outcome'] for row in rollouts if row['quarter'] == 4)\n\n\n"
    "def evidence(rollouts):\n"
    "    for row in rollouts:\n"
    "        if row['outcome'] == 1 and row['progress'] == 1:\n"
    "            yield row['rollout_id']\n"
)


def test_a_python_diagnostic_reads_what_sql_reads(rollouts: Path, executor: Executor) -> None:
    wanted = diagnostic(
        "SELECT avg(outcome) FROM late",
        name="sql",
        evidence="SELECT rollout_id FROM rollouts WHERE outcome = 1 AND progress = 1 ORDER BY rollout_id",
    )
    quiet = isolated(LATE_MEAN, name="quiet", warn=0.9, critical=0.95)
    both = {"python": isolated(LATE_MEAN, name="python"), "sql": wanted, "quiet": quiet}
    mine, theirs, silent = health_report("v1", [rollouts], both, {}, [], executor=executor).findings
    assert mine.value == pytest.approx(theirs.value) and mine.severity == "critical" and mine.error == ""
    assert mine.evidence == theirs.evidence and len(mine.evidence) == 5
    assert (silent.severity, silent.evidence) == ("ok", ())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("while True: pass", "timeout: no value within 1 s"),
        ("return next(rollouts)['scor']", "error: KeyError: 'scor'"),
        ("import os; os._exit(0)", "crash: "),
        ("return [bytes(1 << 30) for _ in range(4)]", "oom: more than"),
        ("print('x' * 10**6)", "output_limit: "),
        ("return None", "wrong_value: no value for these rollouts"),
        ("return float('nan')", "wrong_value: metric gives nan"),
        ("return 10 ** 400", "wrong_value: metric gives a huge integer"),
        ("return True", "wrong_value: metric gives true"),
        ("return '0.4'", 'wrong_value: metric gives "0.4"'),
    ],
)
def test_a_failing_python_diagnostic_is_a_finding_with_its_kind(
    rollouts: Path, executor: Executor, body: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_diagnostics, "METRIC_SECONDS", 1.0)
    bad = isolated(f"def metric(rollouts):\n    {body}\n", name="bad", kind="validity")
    good = isolated("def metric(rollouts):\n    return sum(1 for _ in rollouts)\n", name="good")
    found = health_report("v1", [rollouts], {"bad": bad, "good": good}, {}, [], executor=executor).findings
    assert (found[0].severity, found[0].value, found[0].evidence, found[0].kind) == ("info", None, (), "validity")
    assert found[0].error.startswith(error) and "\n" not in found[0].error
    assert (found[1].value, found[1].severity, found[1].error) == (STEPS * GROUPS * N, "critical", "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 1 / 0", "error: ZeroDivisionError"),
        ("return ['r000000', 'elsewhere']", 'wrong_value: evidence gives "elsewhere", which is no rollout_id'),
        ("return [row for row in rollouts]", "wrong_value: evidence gives {"),
        ("return iter(int, 1)", "wrong_value: evidence gives 0"),
        ("return 3", "error: TypeError"),
    ],
)
def test_evidence_that_fails_keeps_the_severity(rollouts: Path, executor: Executor, body: str, error: str) -> None:
    source = f"def metric(rollouts):\n    return 1\n\n\ndef evidence(rollouts):\n    {body}\n"
    (finding,) = health_report("v1", [rollouts], {"d": isolated(source)}, {}, [], executor=executor).findings
    assert (finding.severity, finding.value, finding.evidence) == ("critical", 1.0, ())
    assert finding.error.startswith(error)


def test_a_version_beyond_the_bound_is_read_in_evenly_spaced_whole_groups(
    rollouts: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (
        "from collections import Counter\n\n\n"
        "def metric(rollouts):\n"
        "    rows = list(rollouts)\n"
        "    assert set(Counter(row['group_id'] for row in rows).values()) == {8}\n"
        "    assert {row['quarter'] for row in rows} == {1, 2, 3, 4}\n"
        "    return len(rows)\n"
    )
    monkeypatch.setattr(diagnose, "rollout_file", partial(rollout_file, max_rollouts=400))
    (finding,) = health_report("v1", [rollouts], {"d": isolated(whole)}, {}, [], executor=executor).findings
    assert (finding.value, finding.error) == (320.0, "")
    assert finding.description == "d (read on 320 of 1280 rollouts, every 4th group)"


def test_the_file_of_rollouts_keeps_within_its_bytes(rollouts: Path) -> None:
    with open_parquet("stored", sorted(rollouts.glob("*.parquet")), copy={"stored", "groups"}, views=VIEWS) as con:
        everything = rollout_file(con)
        assert (everything.rows, everything.stride, everything.note) == (1280, 1, "")
        half = rollout_file(con, max_bytes=len(everything.data) - 1)
        assert half.stride == 2 and half.rows == 640 and len(half.data) < len(everything.data)
        assert set(half.data.splitlines()) < set(everything.data.splitlines())
        assert rollout_file(con, max_bytes=1).rows == N


def test_without_a_sandbox_a_python_diagnostic_is_refused_with_the_remedy(rollouts: Path) -> None:
    with pytest.raises(InputError, match=r"^diagnostics/d\.toml: python: runs in a sandbox only.*--sandbox auto"):
        health_report("v1", [rollouts], {"d": isolated(LATE_MEAN)}, {}, [])
