"""What trainings and evaluations left: results that agree with what lies beside them, tables and weights that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graph.integrity.types import MISSING, Problem, Run, fault, said
from graph.versions import Results
from trainer.embedded.files import CHECKPOINT, ROLLOUTS, STATE, result_file, spec_file
from trainer.types import Evaluation, InputError, TrainResult, TrainSpec


def job_problems(run: Run) -> Iterator[Problem]:
    for seed in sorted((run.root / "versions").glob("*/seed-*/")):
        train = seed / "train"
        if train.is_dir():
            yield from _training(run, train)
        for path in sorted(seed.glob("*.json")):
            if not path.name.endswith(".progress.json"):
                yield from _evaluation(run, path)
    for version in run.settled:
        yield from _missing(run, version)


def _training(run: Run, folder: Path) -> Iterator[Problem]:
    rows = 0
    rollouts, checkpoint = folder / ROLLOUTS, folder / CHECKPOINT
    for file in sorted(rollouts.glob("*.parquet")) if rollouts not in run.pruned else ():
        count = parquet_rows(file)
        if count is None:
            yield run.problem(file, "is no readable Parquet file", "remake")
        rows += count or 0
    for file in sorted(folder.glob("metrics-*.jsonl")):
        if what := _metrics_fault(file):
            yield run.problem(file, what, "remake")
    if (folder / STATE).is_dir():
        for file in sorted((folder / STATE).glob("*.safetensors")):
            if what := tensors_fault(file):
                yield run.problem(file, what, "remake")
    path = result_file(folder)
    if not path.exists():
        return  # not finished: the job goes on or begins again
    for file, kind in ((path, TrainResult), (spec_file(folder), TrainSpec)):
        if what := fault(file, kind):
            yield run.problem(file, what, "remake")
            return
    result = TrainResult.model_validate_json(path.read_bytes())
    if result.checkpoint and result.checkpoint.resolve() != checkpoint.resolve():
        yield run.problem(path, f"checkpoint: names {result.checkpoint}, not the folder beside it",
                          remedy="move the run back there, or call from the folder it was started in")  # fmt: skip
        return
    if checkpoint not in run.pruned and (what := checkpoint_fault(checkpoint)):
        yield run.problem(checkpoint, what, "remake")
    if result.metrics_file and not (folder / result.metrics_file.name).is_file():
        yield run.problem(folder / result.metrics_file.name, MISSING, "remake")
    if rollouts not in run.pruned and rows != result.cost.rollouts:
        yield run.problem(rollouts, f"{rows} rollouts, result.json counts {result.cost.rollouts}", "remake")


def _evaluation(run: Run, path: Path) -> Iterator[Problem]:
    if what := fault(path, Evaluation):
        yield run.problem(path, what, "remake")
        return
    found = Evaluation.model_validate_json(path.read_bytes())
    episodes, wanted = path.with_suffix(".parquet"), sum(map(len, found.scores))
    rows = parquet_rows(episodes) if episodes.exists() else 0
    if episodes in run.pruned:
        return
    if rows is None:
        yield run.problem(episodes, "is no readable Parquet file", "remake")
    elif rows != wanted:
        yield run.problem(episodes, f"{rows} episodes, {path.name} has {wanted} scores", "remake")
    tasks = run.suites.get(path.stem)
    if tasks is not None and tasks != frozenset(found.task_ids):
        yield run.problem(path, f"scores other tasks than tasks/{path.stem}.jsonl", "remake")


def _missing(run: Run, version: str) -> Iterator[Problem]:
    """A version that was judged has a result and both suites for each seed of ``training.json``."""
    entry, training = run.settled[version], run.record.version_dir(version) / "training.json"
    if not (entry["kind"] == "baseline" or entry["gate"]) or fault(training, Results):
        return
    for seed in range(len(Results.model_validate_json(training.read_bytes()).results)):
        for name in ("train/result.json", "validation.json", "gate.json"):
            path = run.record.seed_dir(version, seed) / name
            if not path.exists():
                yield run.problem(path, MISSING, "remake")


def parquet_rows(path: Path) -> int | None:
    """Rows of a Parquet file that can be read from end to end, in bounded memory; None where it cannot."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return sum(int(batch.num_rows) for batch in file.iter_batches())
    except (pa.ArrowException, OSError):
        return None


def checkpoint_fault(folder: Path) -> str:
    """Why the folder is no checkpoint with finite weights, or an empty string."""
    from trainer.embedded.checkpoint import read_config, weight_files

    try:
        read_config(folder)
        return next(filter(None, map(tensors_fault, weight_files(folder))), "")
    except InputError as error:
        return said(error, folder)


def tensors_fault(path: Path) -> str:
    """Why a safetensors file cannot be used, or an empty string."""
    from safetensors import SafetensorError, safe_open

    from trainer.embedded.checkpoint import require_finite

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                require_finite(path, name, file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        return f"unreadable safetensors ({' '.join(str(error).split())})"
    except InputError as error:
        return said(error, path)
    return ""


def _metrics_fault(path: Path) -> str:
    from trainer.embedded.metrics import read_metrics

    try:
        steps = [step for step, _ in read_metrics(path)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"damaged ({error})"
    return "" if steps == list(range(1, len(steps) + 1)) else "steps are missing"
