"""A seeded storm of kills: ``python -m tests.e2e.storm --kills 20 --seed 0``.

An undisturbed run comes first. Then the same run is started again and again; at a random moment the process, or one of
its workers, is killed with SIGKILL, and the run is resumed, until it ends. Its stores, harness trees and set of trained
versions must equal the undisturbed one's, ``graph.runs check`` must call it sound, and no process or temporary file may
be left, while bystanders with the same words in their command line live. Rounds of this follow until enough kills fell.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from graph.record import STORES, RunRecord
from tests.e2e.sameness import trained, trees, without
from tests.runs import LEAST, Runner, arguments

OPTIONS: Mapping[str, Any] = {**LEAST, "trainer.save_interval_s": 0}
"""A training of a second saves after every step, so that kills hit the saving and the going on too."""
GONE_S = 30.0
"""How long the processes of a killed run may take to notice; they poll nothing, so it is milliseconds on an idle machine."""


class Broken(AssertionError):
    """What the storm did break."""


@dataclass
class Storm:
    """What one storm is doing: dice, where, and what it did so far."""

    rng: random.Random
    folder: Path
    wanted: int
    started: float = field(default_factory=time.monotonic)
    horizon_s: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)

    @property
    def runner(self) -> Runner:
        return Runner(self.folder / "home", tmp=self.folder / "tmp")


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m tests.e2e.storm", description=__doc__.splitlines()[0])
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--json", action="store_true", help="figures on stdout as JSON")
    args = p.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        storm = Storm(random.Random(args.seed), Path(folder), args.kills)
        rounds = 0
        with bystanders() as others:
            calm = undisturbed(storm)
            while storm.kills.total() < storm.wanted:
                rounds += 1
                weather(storm, calm, rounds)
            if dead := [other.args for other in others if other.poll() is not None]:
                raise Broken(f"a bystander was killed: {dead}")
        figures = {
            "kills": storm.kills.total(),
            "victims": dict(storm.kills),
            "while": dict(storm.reached),
            "rounds": rounds,
            "seed": args.seed,
            "wall_s": round(time.monotonic() - storm.started, 1),
        }
    print(json.dumps(figures) if args.json else f"storm: nothing was lost; {figures}")
    return 0


@contextmanager
def bystanders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that look like ours to whoever goes by names."""
    code = "import time; time.sleep(100000)"
    words = (["graph.run", "--resume", "stormy"], ["from multiprocessing.forkserver import main"])
    others = [subprocess.Popen([sys.executable, "-c", code, *more]) for more in words]
    try:
        yield others
    finally:
        for other in others:
            other.kill()
            other.wait()


def undisturbed(storm: Storm) -> Path:
    (storm.folder / "tmp").mkdir()
    started = time.monotonic()
    done = storm.runner.run(*arguments(storm.folder, "calm", OPTIONS, versions=2))
    if done.returncode:
        raise Broken(f"the undisturbed run ended with {done.returncode}: {done.stderr}")
    storm.horizon_s = time.monotonic() - started
    print(f"undisturbed: {storm.horizon_s:.1f} s", file=sys.stderr)
    nothing_left(storm, storm.folder / "calm")
    return storm.folder / "calm"


def weather(storm: Storm, calm: Path, number: int) -> None:
    """One run, killed until it ends."""
    run = storm.folder / f"stormy-{number}"
    runner = storm.runner
    if storm.rng.random() < 0.3:  # without the cache the warm start is hit too
        runner = replace(runner, home=storm.folder / f"home-{number}")
    begin = arguments(storm.folder, run.name, OPTIONS, versions=2)
    while True:
        resume = ["--resume", str(run)] if (run / "manifest.json").exists() else begin
        with runner.start(*resume) as process:
            if storm.kills.total() < storm.wanted:
                strike(storm, run, process)
            _, err = process.communicate()
        # A child that was just being started when its parent was killed says so in Python's words; a parent never does.
        if process.returncode not in (0, 1, -9) or ("Traceback" in err and process.returncode != -9):
            raise Broken(f"exit code {process.returncode}: {err}")
        if process.returncode == 1 and err.count("error:") != 1:
            raise Broken(f"not one line: {err}")
        if process.returncode == 0:
            break
    compare(run, calm)
    checked = runner.run("check", str(run), module="graph.runs")
    if checked.returncode:
        raise Broken(f"the run is damaged: {checked.stdout}")
    nothing_left(storm, run)


def strike(storm: Storm, run: Path, process: subprocess.Popen[str]) -> None:
    """Wait for a random while, then kill the process or one of its workers, if it still runs; see that all of a killed
    process's workers are gone."""
    try:
        process.wait(storm.rng.uniform(0.05, 0.6) * storm.horizon_s)
        return
    except subprocess.TimeoutExpired:
        pass
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    worker = storm.rng.choice(family) if family and storm.rng.random() < 0.4 else None
    victim = worker or psutil.Process(process.pid)
    where = newest(run)
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return
    who = "worker" if worker else "parent"
    storm.kills[who] += 1
    storm.reached[where] += 1
    done = storm.kills.total()
    left_min = (time.monotonic() - storm.started) / done * (storm.wanted - done) / 60
    print(f"kill {done} of {storm.wanted}: {who} ({where}), about {left_min:.0f} min left", file=sys.stderr, flush=True)
    if worker is None:
        _, left = psutil.wait_procs(family, timeout=GONE_S)
        if left:
            raise Broken(f"still running {GONE_S:.0f} s after its parent was killed: {left}")


def newest(run: Path) -> str:
    """What the run was at, in a word: the file that changed last."""
    files = [p for p in run.rglob("*") if p.is_file() and p.name not in ("clock.json", "lock", "status.json")]
    with_times = []
    for path in files:
        try:
            with_times.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:
            continue
    if not with_times:
        return "start"
    relative = max(with_times)[1].relative_to(run)
    return relative.parts[0] if relative.parts[0] != "versions" else "/".join(relative.parts[1:3])


def compare(run: Path, calm: Path) -> None:
    for store in STORES:
        got, wanted = (without(list(RunRecord(r).entries(store))) for r in (run, calm))
        if got != wanted:
            raise Broken(f"{store} differs: {got} instead of {wanted}")
    if trees(run) != trees(calm):
        raise Broken(f"the harness differs: {trees(run)} instead of {trees(calm)}")
    if trained(run) != trained(calm):
        raise Broken(f"trained {trained(run)} instead of {trained(calm)}")


def nothing_left(storm: Storm, run: Path) -> None:
    """No process with the run's path, no temporary file of any run."""
    for process in psutil.process_iter(["cmdline", "pid"]):
        if str(run) in " ".join(process.info["cmdline"] or ()):
            raise Broken(f"still running: {process}")
    if left := list((storm.folder / "tmp").iterdir()):
        raise Broken(f"temporary files left: {left}")


if __name__ == "__main__":
    sys.exit(main())
