"""Restore what can be restored. What cannot be made again is never deleted: it moves to RUN/damaged/."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from graph.bases import FOLDER
from graph.build import NODES
from graph.integrity.entries import lost
from graph.integrity.folders import restored
from graph.integrity.harness import champion_commit, tree_files
from graph.integrity.stores import bad_lines
from graph.integrity.types import Mend, Problem, Run
from graph.leftovers import remove
from graph.record import STORES, RunRecord, lines_of, read_record, write_atomic
from graph.seals import seal
from graph.session import Manifest, program
from graph.state import schema_hash
from trainer.harness import HarnessRepo
from trainer.harness_refs import MAIN

ASIDE = "damaged"


def repair(root: Path, problems: Sequence[Problem]) -> Iterator[str]:
    """Mend what can be mended, one line for each thing done. Call it under the run's lock."""
    run = Run(root)
    done: set[tuple[Mend, str]] = set()
    for problem in problems:
        unit = _unit(run, problem)
        if problem.mend and (problem.mend, unit) not in done:
            done.add((problem.mend, unit))
            yield from MENDS[problem.mend](run, root / unit)
    # A job that is done again, or a node, is asked for by a machine that starts from the ledger.
    if any(mend in ("remake", "rewind", "adopt") for mend, _ in done) and ("rewind", "checkpoints.sqlite") not in done:
        yield from _rewind(run, root / "checkpoints.sqlite")


def _unit(run: Run, problem: Problem) -> str:
    """What is done again as a whole: a training with all its files, an evaluation with its episodes."""
    parts = Path(problem.file).parts
    if problem.mend == "remake" and "train" in parts:
        return str(Path(*parts[: parts.index("train") + 1]))
    if problem.mend == "remake" and len(parts) > 2 and parts[2].startswith("seed-"):
        return str(Path(problem.file).with_suffix(".json"))
    if problem.mend == "remake" and parts[0] == "base":
        return "base.json"
    if problem.mend == "remake" and parts[0] == FOLDER:
        return str(Path(*parts[:2]))
    if problem.mend == "harness":
        return "harness"
    return problem.file


def set_aside(run: Run, path: Path) -> Iterator[str]:
    """Move a file or folder of the run to the same place under ``damaged/``; a number follows where that is taken."""
    if not path.exists():
        return
    relative = path.relative_to(run.root)
    target, number = run.root / ASIDE / relative, 1
    while target.exists():
        number += 1
        target = (run.root / ASIDE / relative).with_name(f"{relative.name}.{number}")
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    yield f"{relative}: set aside as {target.relative_to(run.root)}"


def _sweep(run: Run, path: Path) -> Iterator[str]:
    if path == run.root / "harness.lock":
        HarnessRepo(run.root.absolute() / "harness").reset_stale_worktrees()
        yield f"{path.name}: what was under way in the harness is finished"
        return
    remove(path)
    yield f"{run.relative(path)}: removed"


def _lines(run: Run, path: Path) -> Iterator[str]:
    bad = {line.number for line, _ in bad_lines(path)}
    every = list(lines_of(path))
    kept = [line.text for line in every if line.number not in bad]
    aside = [line.text for line in every if line.number in bad]
    target = run.root / ASIDE / path.relative_to(run.root)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(text.rstrip("\n") + "\n" for text in aside)
    write_atomic(path, "".join(kept))
    yield f"{run.relative(path)}: {len(aside)} damaged lines set aside as {target.relative_to(run.root)}"


def _enter(run: Run, path: Path) -> Iterator[str]:
    """The lock is held, so the stores may be opened for writing, once their own lines are mended."""
    if any(True for store in STORES for _ in bad_lines(run.record.path(store))):
        return
    record = RunRecord(run.root, writable=True)
    for entry in lost(run):
        if run.record.path(entry.store) == path and record.append(entry.store, entry.key, entry.value):
            yield f"{run.relative(path)}: {entry.key} entered again"


def _restore(run: Run, path: Path) -> Iterator[str]:
    record = restored(run, path.parent.name, path.stem)
    if record is None:
        return
    yield from set_aside(run, path)
    run.record.save(path.parent.name, path.stem, record)
    yield f"{run.relative(path)}: written again from the record"


def _remake(run: Run, path: Path) -> Iterator[str]:
    yield from set_aside(run, path)
    if path.suffix == ".json":
        yield from set_aside(run, path.with_suffix(".parquet"))
    if path.parent == run.root:
        yield from set_aside(run, run.root / path.stem)  # base.json and the policy it speaks of


def _rewind(run: Run, path: Path) -> Iterator[str]:
    yield from set_aside(run, path)
    for journal in ("-wal", "-shm", "-journal"):
        yield from set_aside(run, path.with_name(path.name + journal))


def _harness(run: Run, path: Path) -> Iterator[str]:
    """Main back to the champion, the work tree to main; what somebody changed there is set aside."""
    repo = HarnessRepo(path.absolute())
    for lock in repo.git.git_dir.rglob("*.lock"):
        lock.unlink(missing_ok=True)
    commit = champion_commit(run)
    head = repo.git("rev-parse", "--verify", "--quiet", f"{MAIN}^{{commit}}") if (path / ".git" / MAIN).exists() else ""
    if commit and commit not in (repo.git("log", "--first-parent", "--format=%H", head).split() if head else []):
        repo.git("update-ref", "-m", "repair", MAIN, commit)
        yield f"harness: main put back from {head[:12] or 'nothing'} to {commit[:12]}"
    repo.git("symbolic-ref", "HEAD", MAIN)
    ours = repo.files(repo.head())
    for file in tree_files(path):
        name = str(file.relative_to(path))
        if ours.get(name) != file.read_text(encoding="utf-8", errors="surrogateescape"):
            yield from set_aside(run, file)
    repo.git("read-tree", "--reset", "-u", "HEAD")
    repo.reset_stale_worktrees()
    yield "harness: the work tree holds main again"


def _adopt(run: Run, path: Path) -> Iterator[str]:
    manifest = read_record(path, Manifest)
    yield from set_aside(run, path)
    ours = manifest.model_copy(update={"machine_hash": schema_hash(tuple(NODES)), "written_by": program()})
    write_atomic(path, ours.model_dump_json(indent=1) + "\n")
    seal(run.root, [path])
    yield f"{path.name}: this version of EvoTrainer takes the run over"


MENDS: Mapping[Mend, Callable[[Run, Path], Iterator[str]]] = {
    "sweep": _sweep,
    "lines": _lines,
    "enter": _enter,
    "restore": _restore,
    "remake": _remake,
    "rewind": _rewind,
    "harness": _harness,
    "adopt": _adopt,
}
