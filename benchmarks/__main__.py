"""python -m benchmarks: the claims that can be measured, one module each."""

from __future__ import annotations

import sys

BENCHMARKS = {
    "math": "sealed results over seeds, from the human reference and from a damaged start",
    "code": "sealed results over seeds, with hidden and with visible tests as the reward",
    "sandbox": "short programs: warm workers against a process or a sandbox each, and what grows over many",
    "trainer": "a GRPO step against TRL, transformers' generate, and the bare passes",
    "gate": "how often the promotion gate errs and what it finds, next to the usual practices",
    "strategies": "certify against each at equal budget, from the human reference and from a damaged start",
    "null": "whole runs in which every candidate is a no-op: false promotions, and the spread between seeds",
    "hacks": "reward hacks and honest improvements before the gate, and hacks in whole runs",
    "exploits": "planted exploits of the reward: who sees them, a seed diagnostic, an evolved one or the gate scorer alone",
    "clean": "false blocks by evolved diagnostics in runs where nothing is wrong",
    "damages": "damaged starts: whether they are named rightly and repaired",
    "memory": "whether a run that has the memory of another one gets there in fewer versions",
    "health": "the health report from ten thousand to a million rollouts: seconds and memory",
    "python_terms": "what isolation costs a Python reward term in a training step",
}


def main() -> int:
    """List the benchmarks; each has its own options (``python -m benchmarks.math --help``)."""
    for name, purpose in BENCHMARKS.items():
        print(f"python -m benchmarks.{name}   {purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
