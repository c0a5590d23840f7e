"""What isolation costs a Python reward term: ``python -m benchmarks.python_terms [--rows 256] [--repeats 40]``.

The same function scores the same rows in this process and in the warm sandbox, in turn; the difference is what a training
step pays. Prints medians and 90th percentiles, and the share of a step.
"""

from __future__ import annotations

import argparse
import inspect
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

PURPOSE = "what isolation costs a Python reward term in a training step"
STEP_S = 0.9
"""A training step of the default policy with 256 rollouts on one core."""
RESPONSE_WORDS = 48


def reward(rows: list[dict[str, Any]]) -> list[float]:
    """Share of a reply's words that it says only once, for correct replies."""
    shares = []
    for row in rows:
        counts = Counter(row["response"].split())
        once = sum(1 for count in counts.values() if count == 1)
        shares.append(row["outcome"] * once / max(1, len(counts)))
    return shares


def make_rows(count: int) -> Any:
    """A batch as the math domain gives it: groups of eight, about fifty words a reply."""
    import pyarrow as pa

    draw = random.Random(0)
    replies = [" ".join(str(draw.randrange(100)) for _ in range(RESPONSE_WORDS)) for _ in range(count)]
    columns: dict[str, Sequence[object]] = {
        "task_id": [f"{i // 8:016x}" for i in range(count)],
        "family": ["chain"] * count,
        "level": [1] * count,
        "response": replies,
        "extracted": [reply.split()[-1] for reply in replies],
        "outcome": [float(draw.random() < 0.5) for _ in range(count)],
        "response_length": [2 * RESPONSE_WORDS] * count,
        "max_response_length": [128] * count,
        "turns": [1] * count,
        "truncated": [False] * count,
        "stop_reason": ["eos"] * count,
        "format_ok": [1.0] * count,
        "repeats": [0.0] * count,
    }
    return pa.table(columns)


def measure(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, by name, taken in turn so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> int:
    from sandboxes.backends import open_backend
    from trainer.execution import IsolatedPrograms
    from trainer.python_parts import run_terms
    from trainer.types import RewardTerm

    parser = argparse.ArgumentParser(prog="python -m benchmarks.python_terms", description=PURPOSE)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=STEP_S, help="seconds of a training step to compare with")
    args = parser.parse_args()
    backend = open_backend("auto")
    rows = make_rows(args.rows)
    source = "from __future__ import annotations\nfrom collections import Counter\n\n\n" + inspect.getsource(reward)
    source = source.replace("dict[str, Any]", "dict")
    terms = {f"t{i}": RewardTerm(name=f"t{i}", description=PURPOSE, python=source) for i in range(3)}
    one = {"t0": terms["t0"]}
    with closing(IsolatedPrograms(backend.name, "benchmark")) as programs:
        first = measure({"first": lambda: run_terms(programs, rows, one)}, 1)["first"][0]
        found = run_terms(programs, rows, one)["t0"]
        if found.faults or found.values.tolist() != reward(rows.to_pylist()):
            raise SystemExit(f"the sandbox gives other values: {found.faults or 'no fault'}")
        seconds = measure(
            {
                "in this process": lambda: reward(rows.to_pylist()),
                "one term, sandbox": lambda: run_terms(programs, rows, one),
                "three terms, sandbox": lambda: run_terms(programs, rows, terms),
            },
            args.repeats,
        )
    print(f"\n## {args.rows} rows, {args.repeats} repeats, {backend.isolation()}\n")
    print("| | median ms | 90th percentile ms | share of a step |\n| --- | --- | --- | --- |")
    print(f"| first call, starts the sandbox | {1000 * first:.1f} | | |")
    for name, values in seconds.items():
        middle, high = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        print(f"| {name} | {1000 * middle:.1f} | {1000 * high:.1f} | {100 * middle / args.step_s:.1f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
