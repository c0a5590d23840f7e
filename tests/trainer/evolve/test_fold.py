"""Metrics that point to the same rollouts are folded; those that do not, or would see less together, are left as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.evolve.test_retrospect import of_seed, source
from tests.trainer.rollout_tables import Columns
from trainer.diagnose import run_diagnostic
from trainer.evolve.fold import OVERLAP, folded, overlap
from trainer.evolve.labels import open_version
from trainer.types import Diagnostic


def short(c: Columns) -> None:
    """Most failures are short, and nearly all of those are marked by one value of their length too."""
    fails = c["outcome"] < 1
    some = np.random.default_rng(1).random(len(fails)) < 0.9
    c["response"] = np.where(fails & some, "#7", c["response"])
    c["response_length"] = np.where(fails, 3, c["response_length"])


def pointing(name: str, where: str) -> Diagnostic:
    return Diagnostic(
        name=name, layer="behaviour", description=f"Share with {where}.", metric=f"SELECT avg(({where})::INT) FROM late",
        warn=0.5, critical=0.8, evidence=f"SELECT rollout_id FROM late WHERE {where} ORDER BY rollout_id LIMIT 5",
    )  # fmt: skip


LITTLE = pointing("evolved_words", "length(response) < 3")
BRIEF = pointing("evolved_length", "response_length < 4")
ALL = pointing("evolved_all", "response_length < 99")


def test_two_views_of_one_habit_become_one_metric(tmp_path: Path) -> None:
    sources = [source(tmp_path, "v0001", True, short), source(tmp_path, "v0000", False, of_seed(1))]
    with open_version(sources[0]) as con:
        assert overlap(con, LITTLE, BRIEF) == pytest.approx(0.9, abs=0.05)
        assert overlap(con, LITTLE, ALL) < OVERLAP
    one, found = folded(LITTLE, BRIEF, "both", sources)
    assert one is not None and found.reasons == () and found.rule == "evolved_words or evolved_length"
    assert found.held_out == pytest.approx(1.0) and found.low > 0.9
    with open_version(sources[0]) as con:
        finding = run_diagnostic(con, one)
        assert (finding.severity, finding.error) == ("ok", ""), "what there is now is where the line starts"
        assert finding.value == run_diagnostic(con, BRIEF).value
    assert folded(LITTLE, BRIEF, "both", sources) == (one, found)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_a_tip_without_both_kinds_of_rollouts_folds_nothing(outcome: float, tmp_path: Path) -> None:
    def one_kind(c: Columns) -> None:
        c["outcome"] = np.full(len(c["step"]), outcome)

    def one_task(c: Columns) -> None:
        short(c)
        c["task_id"] = np.full(len(c["step"]), "task1")

    for number, change in enumerate((one_kind, one_task)):
        none, found = folded(LITTLE, BRIEF, "both", [source(tmp_path / str(number), "v0001", True, change)])
        assert none is None
        assert found.reasons == ("there are not enough rollouts of both kinds to check it",)


def test_a_fold_that_separates_nothing_is_not_registered(tmp_path: Path) -> None:
    none, found = folded(
        ALL, pointing("evolved_most", "response_length < 98"), "both", [source(tmp_path, "v0001", True, short)]
    )
    assert none is None
    assert found.reasons == ("on held-out tasks it separates by 0.00 (0.00 to 0.00), asked for 0.25",)


def test_a_query_that_cannot_be_run_overlaps_with_nothing(tmp_path: Path) -> None:
    with open_version(source(tmp_path, "v0001", True, short)) as con:
        assert overlap(con, LITTLE, LITTLE.model_copy(update={"evidence": "SELECT no FROM late"})) == 0.0


def test_what_tells_less_together_than_alone_stays_apart(tmp_path: Path) -> None:
    none, found = folded(BRIEF, ALL, "both", [source(tmp_path, "v0001", True, short)])
    assert none is None
    assert found.reasons == ("on held-out tasks it separates by 0.00 (0.00 to 0.00), asked for 0.25",)
