from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.diagnose import VIEWS, health_report, trends
from trainer.evidence import write_step
from trainer.groups import groups_with_spread
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
