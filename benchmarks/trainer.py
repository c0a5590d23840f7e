"""How fast a GRPO step is: ``python -m benchmarks.trainer [--json] [--write docs/speed.md]``, about two minutes.

The same policy (the default layout, about 100,000 parameters, as a Hugging Face checkpoint), the same prompts, replies of a
fixed length, whole steps (sampling, reward, advantages, update), side by side in one run:

- ``ours``: trainer.embedded, as a run calls it, evidence files and metrics included, one thread as in a run
- ``trl``: TRL's GRPOTrainer
- ``generate``: a plain loop over transformers' ``generate``
- ``passes``: bare passes of our decoder, token by token through the cache, then one forward and backward
- ``transformers passes``: the same with transformers' decoder

Each way is a process of its own and they take turns, so that ratios are taken within a round. TRL and transformers run in
an environment that is made once in the user's cache, with the torch and transformers versions of this one; each takes
the better of one and two threads, tried before the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import platformdirs

from benchmarks.pacing import Paced
from benchmarks.shapes import SHAPES, Shape

TRL = "1.16.0"
OURS, PEERS = "benchmarks.trainer_ours", "benchmarks.trainer_peers"
WAYS = {"ours": OURS, "passes": OURS, "trl": PEERS, "generate": PEERS, "transformers passes": PEERS}
THREADS = {OURS: (1,), PEERS: (1, 2)}
TRIALS = 3
"""Repetitions per number of threads, after one that warms up."""
TARGETS = (
    # what, slower way, of which figure, faster way, at least (above 1) or at most this ratio
    ("whole step: TRL's takes times ours", "trl", "step_s", "ours", 4.0),
    ("sampling: transformers' generate takes times ours", "generate", "rollout_s", "ours", 5.0),
    ("whole step: ours takes times its bare passes", "ours", "step_s", "passes", 1.5),
)
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Repetition = dict[str, float]
Rounds = dict[str, list[Repetition]]
"""Repetitions of each way, in the order of the rounds: entry i of all ways stood next to each other."""


def peers_python(cache: Path) -> Path:
    """The interpreter of the environment for TRL and transformers; made where it is not there yet (minutes)."""
    pins = {"trl": TRL, "torch": version("torch").partition("+")[0], "transformers": version("transformers")}
    folder = cache / "benchmarks" / "-".join(f"{name}-{pin}" for name, pin in pins.items())
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"making {folder} for TRL {TRL}, once; some minutes", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        wanted = [f"{name}=={pin}" for name, pin in pins.items()]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, stdout=sys.stderr)
        ready.touch()
    return python


def measure(shape: Shape, rounds: int, folder: Path, peers: Path) -> dict[str, Any]:
    """Rounds of all ways at one shape, and the threads that each took."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with ExitStack() as stack:
        paced = {}
        for name, module in WAYS.items():
            python = sys.executable if module == OURS else peers
            command = [str(python), "-m", module, name, str(folder), *map(str, shape)]
            paced[name] = stack.enter_context(Paced(command, folder / f"{name}-{shape.sequences}.log", environment))
        threads = {}
        for name, module in WAYS.items():
            tried = {}
            for count in THREADS[module]:
                print(f"{label(shape)}: {name}, warm-up, threads: {count}", file=sys.stderr, flush=True)
                tried[count] = median([paced[name].repeat(count)["step_s"] for _ in range(TRIALS + 1)][1:])
            threads[name] = min(tried, key=lambda count: tried[count])
        return {"threads": threads, "rounds": take_turns(paced, threads, rounds, label(shape))}


def take_turns(paced: Mapping[str, Paced], threads: Mapping[str, int], rounds: int, what: str) -> Rounds:
    """``rounds`` rounds in which every way repeats once; the first of a round changes, so that none always follows the same."""
    order = list(paced)
    taken: Rounds = {name: [] for name in order}
    began = time.monotonic()
    for number in range(rounds):
        for name in rotated(order, number):
            taken[name].append(paced[name].repeat(threads[name]))
        left = (time.monotonic() - began) / (number + 1) * (rounds - number - 1)
        print(f"{what}: round {number + 1} of {rounds}, about {left:.0f} s left", file=sys.stderr, flush=True)
    return taken


def rotated(order: Sequence[str], by: int) -> Iterator[str]:
    """``order``, starting ``by`` places further on, around its end."""
    turn = cycle(order)
    for _ in range(by % len(order)):
        next(turn)
    return (next(turn) for _ in order)


def label(shape: Shape) -> str:
    return f"{shape.sequences} × {shape.tokens}"


def ratios(rounds: Rounds, above: str, below: str, figure: str) -> list[float]:
    """``figure`` of one way over that of another, round by round."""
    return [a[figure] / b[figure] for a, b in zip(rounds[above], rounds[below], strict=True)]


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Median, and the quartiles around it."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{show(median(values))} ({show(low)} to {show(high)})"


def table(shape: Shape, threads: Mapping[str, int], rounds: Rounds) -> str:
    """One row per way: time of a step and of its sampling, rollouts per second, memory, and ratios to ours."""
    head = ["way", "threads", "ms per step", "of it sampling", "rollouts/s", "sampled/s", "peak MB", "step ÷ ours",
            "sampling ÷ ours"]  # fmt: skip
    rows = []
    for name, taken in rounds.items():
        step, rollout = ([repetition[figure] for repetition in taken] for figure in ("step_s", "rollout_s"))
        rows.append(
            [
                name,
                str(threads[name]),
                spread(step, lambda s: f"{1000 * s:.1f}"),
                spread(rollout, lambda s: f"{1000 * s:.1f}"),
                f"{shape.sequences / median(step):.0f}",
                f"{shape.sequences / median(rollout):.0f}",
                f"{max(repetition['peak_rss_mb'] for repetition in taken):.0f}",
                f"{median(ratios(rounds, name, 'ours', 'step_s')):.2f}",
                f"{median(ratios(rounds, name, 'ours', 'rollout_s')):.2f}",
            ]
        )
    return markdown(head, rows)


def targets(shape: Shape, rounds: Rounds) -> list[list[str]]:
    """What was aimed at: rows of shape, claim, ratio (paired by round), aim, and whether it is met."""
    rows = []
    for claim, above, figure, below, aim in TARGETS:
        found = ratios(rounds, above, below, figure)
        at_most = above == "ours"
        met = median(found) <= aim if at_most else median(found) >= aim
        rows.append(
            [
                label(shape),
                claim,
                spread(found, lambda r: f"{r:.2f}"),
                f"{'≤' if at_most else '≥'} {aim}",
                "yes" if met else "no",
            ]
        )
    return rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def report(result: Mapping[str, Any]) -> str:
    """The tables of all shapes, then the targets."""
    parts, aims = [], []
    for text, found in result["shapes"].items():
        shape = Shape(*map(int, text.split("x")))
        parts.append(f"### {label(shape)} tokens, {len(found['rounds']['ours'])} rounds\n\n"
                     + table(shape, found["threads"], found["rounds"]))  # fmt: skip
        aims += targets(shape, found["rounds"])
    parts.append("### Targets\n\n" + markdown(["shape", "claim", "ratio", "target", "met"], aims))
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return "\n\n".join([*parts, f"{versions}; {result['cores']} cores. Median (quartiles) over the rounds."])


def put_into(page: str, figures: str) -> str:
    """``page`` with what stands between its two marks replaced. Raises ValueError where it has no marks."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=24, help="at 16 sequences; larger shapes get half (at least 2)")
    parser.add_argument("--json", action="store_true", help="print every repetition as JSON in place of the tables")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the marks of this page")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: at least 2")
    peers = peers_python(platformdirs.user_cache_path("evotrainer"))
    result: dict[str, Any] = {
        "versions": {"torch": version("torch"), "transformers": version("transformers"), "trl": TRL},
        "cores": os.cpu_count(),
        "shapes": {},
    }
    with TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", OURS, "prepare", folder], check=True)
        for shape in SHAPES:
            rounds = args.rounds if shape == SHAPES[0] else max(2, args.rounds // 2)
            result["shapes"][f"{shape.sequences}x{shape.tokens}"] = measure(shape, rounds, folder, peers)
    print(json.dumps(result, indent=1) if args.json else report(result))
    if args.write:
        args.write.write_text(put_into(args.write.read_text("utf-8"), report(result)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
