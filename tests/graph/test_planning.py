"""What fits into the time that is left."""

from __future__ import annotations

import pytest

from graph.planning import Pace, Plan


@pytest.mark.parametrize(("jobs", "lanes", "batches"), [(1, 2, 1), (2, 2, 1), (5, 2, 3), (4, 8, 1), (5, 1, 5)])
def test_jobs_run_in_batches_of_as_many_as_fit(jobs: int, lanes: int, batches: int) -> None:
    pace = Pace(train_s=10, evaluate_s=2, sealed_s=3, lanes=lanes, overhead=1.5)
    assert pace.batch_s(jobs, 12) == pytest.approx(1.5 * batches * 12)


def test_a_further_candidate_leaves_room_for_certification_and_report() -> None:
    assert Plan(candidate_s=20, certify_s=50, report_s=10, left_s=100, candidates=2).next_s == 80
