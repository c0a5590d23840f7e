"""A training whose harness holds Python: the loop goes on whatever a term does, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sandboxes.backends import open_backend
from sandboxes.types import Executor
from tests.trainer.embedded.toy import BREVITY, OUTCOME, CopyDomain, copy_policy, copy_recipe, copy_spec
from trainer import python_parts
from trainer.diagnose import health_report
from trainer.embedded import grpo
from trainer.embedded.launcher import EmbeddedTrainer
from trainer.embedded.policy import save_policy
from trainer.python_parts import TERM_FAULTS, read_faults
from trainer.types import InputError, RewardTerm, TrainResult, TrainSpec

BREVITY_IN_PYTHON = RewardTerm(
    name="brevity",
    description="short replies",
    python="def reward(rows):\n    return [1.0 / (1 + row['response_length']) for row in rows]\n",
)
ENDLESS = RewardTerm(
    name="endless", description="never answers", python="def reward(rows):\n    while True:\n        pass\n"
)
WEIGHTS = {"reward": {"weights": {"outcome": 1.0, "brevity": 0.5}}}


def run(spec: TrainSpec, executor: Executor | None) -> TrainResult:
    torch.set_num_threads(1)
    return grpo.train(spec, copy_policy(), CopyDomain(), lambda progress: None, executor)


def rollouts_of(result: TrainResult) -> pa.Table:
    assert result.rollouts_dir is not None
    return pa.concat_tables([pq.read_table(file) for file in sorted(result.rollouts_dir.glob("*.parquet"))])


def test_a_python_term_trains_exactly_as_the_same_sql_does(tmp_path: Path, executor: Executor) -> None:
    results = [
        run(
            copy_spec(
                tmp_path / name, copy_recipe(**WEIGHTS), terms={"outcome": OUTCOME, "brevity": t}, token_budget=600
            ),
            executor,
        )
        for name, t in (("sql", BREVITY), ("python", BREVITY_IN_PYTHON))
    ]
    sql, isolated = map(rollouts_of, results)
    assert sql["term_brevity"].to_numpy().min() < sql["term_brevity"].to_numpy().max()
    assert isolated.to_pydict() == sql.to_pydict()
    weights = [(r.checkpoint / "model.safetensors").read_bytes() for r in results if r.checkpoint]
    assert weights[0] == weights[1]
    assert not (tmp_path / "python" / TERM_FAULTS).exists()


def test_a_faulty_term_is_switched_off_the_training_goes_on_and_the_finding_names_it(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_parts, "TERM_SECONDS", 0.5)
    recipe = copy_recipe(reward={"weights": {"outcome": 1.0, "brevity": 0.5, "endless": 2.0}})
    terms = {"outcome": OUTCOME, "brevity": BREVITY_IN_PYTHON, "endless": ENDLESS}
    result = run(copy_spec(tmp_path, recipe, terms=terms, token_budget=800), executor)
    assert (result.status, result.early_stop) == ("completed", None) and result.cost.steps > 4
    table = rollouts_of(result)
    assert set(table["term_endless"].to_pylist()) == {0.0}
    lengths, outcome = table["response_length"].to_numpy(), table["outcome"].to_numpy()
    assert table["term_brevity"].to_pylist() == (1.0 / (1 + lengths)).tolist()
    assert table["score"].to_pylist() == (outcome + 0.5 * (1.0 / (1 + lengths))).tolist()
    faults = read_faults(tmp_path / TERM_FAULTS)
    assert [(f.step, f.term, f.kind, f.off) for f in faults] == [
        (step, "endless", "timeout", step == 3) for step in (1, 2, 3)
    ]
    assert result.metrics_file is not None and result.rollouts_dir is not None
    metrics = [json.loads(line)["data"] for line in result.metrics_file.read_text().splitlines()]
    assert all(m["timing_s/reward"] > 0.5 for m in metrics[:3])
    report = health_report(
        "v1", [result.rollouts_dir], {}, {}, [result.metrics_file], fault_files=[tmp_path / TERM_FAULTS]
    )
    (finding,) = report.findings
    assert (finding.diagnostic, finding.kind, finding.severity) == ("reward/endless", "validity", "critical")
    assert finding.error == "timeout: no value within 0.5 s" and "reward/endless.toml" in finding.description


def test_a_job_runs_the_terms_in_the_sandbox_of_its_spec_and_none_without(tmp_path: Path, executor: Executor) -> None:
    assert executor.run([]) == []  # skips where no sandbox works
    backend = open_backend("auto").name
    save_policy(copy_policy(), tmp_path / "base")
    terms = {"outcome": OUTCOME, "brevity": BREVITY_IN_PYTHON}
    isolated, bare = (
        copy_spec(
            tmp_path / sandbox, copy_recipe(**WEIGHTS), domain="math", terms=terms, sandbox=sandbox,
            base_policy=tmp_path / "base", token_budget=300,
        )
        for sandbox in (backend, "none")
    )  # fmt: skip
    with EmbeddedTrainer(max_parallel=1) as trainer:
        done, refused = trainer.run_all([isolated, bare])
    assert done.status == "completed", done.error
    table = rollouts_of(done)
    assert table["term_brevity"].to_pylist() == (1.0 / (1 + table["response_length"].to_numpy())).tolist()
    assert set(table["sandbox"].to_pylist()) == {backend}
    assert refused.status == "crashed" and "reward/brevity.toml: python: runs in a sandbox only" in refused.error


def test_without_a_sandbox_no_step_is_trained(tmp_path: Path) -> None:
    spec = copy_spec(tmp_path, terms={"outcome": OUTCOME, "brevity": BREVITY_IN_PYTHON})
    with pytest.raises(InputError, match=r"^reward/brevity\.toml: python: runs in a sandbox only"):
        run(spec, None)
    assert not list(tmp_path.glob("rollouts/*"))
