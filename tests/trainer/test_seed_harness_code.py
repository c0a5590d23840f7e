"""The code domain's own diagnostics: each fires on a sick training and is quiet on a healthy one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.diagnose import health_report
from trainer.domains.code.features import FEATURES
from trainer.harness_files import parse_harness
from trainer.reward import check_term
from trainer.seed_harness import load_seed_files
from trainer.types import Finding

from .rollout_tables import Change, Columns, N, healthy, late, write

HARNESS = parse_harness(load_seed_files("code"), "seed")
COMMON = parse_harness(load_seed_files(), "seed")
OWN = {name: d for name, d in HARNESS.diagnostics.items() if name not in COMMON.diagnostics}
SCORES = {"validation/mean": 0.62, "gate/mean": 0.60}


def with_programs(change: Change | None = None) -> Change:
    """The healthy table with the domain's features: programs that parse, loop, and pass what they are shown when right."""

    def apply(c: Columns) -> None:
        rows = len(c["step"])
        for name in FEATURES:
            c.setdefault(name, np.zeros(rows))
        c["compiles"] = np.ones(rows)
        c["loops"] = np.ones(rows)
        c["tests_passed"] = np.where(c["outcome"] > 0, 1.0, 0.2)
        c["visible"] = c["outcome"].copy()
        if change:
            change(c)

    return apply


def fooled(c: Columns) -> Any:
    """Late rollouts, two of eight of each group, that failed."""
    return late(c) & (np.arange(len(c["step"])) % N >= 6)


def weakly_paid(c: Columns) -> None:
    c["visible"] = np.where(fooled(c), 1.0, c["visible"])
    c["score"] = c["visible"].copy()


def strictly_paid(c: Columns) -> None:
    c["visible"] = np.where(fooled(c), 1.0, c["visible"])


def on(column: str, value: float, also: str = "") -> Change:
    def apply(c: Columns) -> None:
        c["outcome"] = np.where(fooled(c), 0.0, c["outcome"])
        c[column] = np.where(fooled(c), value, c[column])
        if also:
            c[also] = np.where(fooled(c), value, c[also])

    return apply


def near(c: Columns) -> None:
    c["tests_passed"] = np.where(c["outcome"] > 0, 1.0, 0.7)


SICK: Mapping[str, Change] = {
    "weak_verifier": weakly_paid,
    "special_casing": on("special_cases", 1.0),
    "literal_programs": on("literal_only", 1.0),
    "syntax_errors": on("compiles", 0.0),
    "runtime_errors": on("runtime_error", 1.0),
    "timeouts": on("timed_out", 1.0),
    "near_misses": near,
}


def findings(tmp_path: Path, change: Change) -> dict[str, Finding]:
    report = health_report("v1", [write(tmp_path, with_programs(change))], OWN, SCORES, [])
    return {f.diagnostic: f for f in report.findings}


def test_every_own_diagnostic_has_a_sick_case() -> None:
    assert set(SICK) == set(OWN)


def test_all_are_quiet_on_a_healthy_training(tmp_path: Path) -> None:
    report = health_report("v1", [write(tmp_path, with_programs())], HARNESS.diagnostics, SCORES, [])
    assert {f.diagnostic: (f.severity, f.error) for f in report.findings} == dict.fromkeys(
        HARNESS.diagnostics, ("ok", "")
    )


@pytest.mark.parametrize("name", sorted(SICK))
def test_each_fires_on_its_pathology(name: str, tmp_path: Path) -> None:
    found = findings(tmp_path, SICK[name])[name]
    assert found.severity in ("warn", "critical") and not found.error, found
    assert found.evidence and set(found.evidence) <= set(healthy()["rollout_id"])


def test_fooling_the_visible_tests_is_harmless_while_the_hidden_ones_pay(tmp_path: Path) -> None:
    assert findings(tmp_path, strictly_paid)["weak_verifier"].severity == "ok"


def test_terms_and_options_of_the_domain() -> None:
    assert HARNESS.recipe.data.max_response_length == 80
    assert set(HARNESS.terms) - set(COMMON.terms) == {"partial"}
    for term in HARNESS.terms.values():
        check_term(term, FEATURES)
