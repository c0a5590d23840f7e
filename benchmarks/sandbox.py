"""What isolation costs: ``python -m benchmarks.sandbox [--rounds 5] [--soak 2000]``.

One execution is one program with its tests in a process of its own. Ways of doing that are measured in turns, in blocks
that alternate within one run, because only ratios mean something on a shared machine:

- ``warm 1``, ``warm 2``: sandboxes.pool with as many workers
- ``process``: ``python3 -I`` per execution, no isolation; ``bare process``: the same without site (``-S``)
- ``bubblewrap exec``, ``docker exec``: a fresh interpreter per execution in a sandbox that is already there

What limits a warm worker is memory management: an execution of a small function takes about 500 page faults, one of the
class measured here 650. A third of them are the server's, which must write to pages that the fork shared; most of the
others are reference counts of objects that the forked process uses. Other preloaded modules than ``random`` and
``threading`` add none to a bare fork, and running the guest's code often before the first fork saved only 3 %. What
helped: hooks of ``random`` and ``threading`` at a fork are left to the program's own forks (150 faults), no enumerations
in the forked process (40), one wake-up per program instead of one per case, and the next program is sent while one runs.

``--soak N`` runs N programs, every tenth of them ill-behaved, and prints what has grown: memory and descriptors of this
process and of the workers, processes, files in the sandbox and in the temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from sandboxes.backends import BACKENDS, open_backend
from sandboxes.owners import this_process
from sandboxes.pool import Pool
from sandboxes.types import Backend, Program, SandboxUnavailable

SOURCE = """
from collections import Counter
from typing import List
class Solution:
    def f(self, words: List[str], k: int) -> List[str]:
        counts = Counter(words)
        return sorted(counts, key=lambda w: (-counts[w], w))[:k] + [str({seed})]
"""
CASES = tuple(json.dumps([["a", "b", "c", "a", "b", "a"] * n, 2]) for n in range(1, 11))
DRIVER = """
import json, sys
job = json.load(sys.stdin)
space = {"__name__": "solution"}
exec(compile(job["source"], "solution.py", "exec"), space)
print(json.dumps([space["Solution"]().f(*json.loads(case)) for case in job["cases"]]))
"""
PYTHON = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
ILL = (
    "import os\nos._exit(1)",
    "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(1000)",
    "open('/task/left', 'w').write('x' * 10000)\nopen('/dev/shm/left', 'w')\nimport os\nos.makedirs('a/b')\nos.chmod('a', 0)",
    "while True: print('x' * 1000)",
    "x = []\nwhile True: x.append('x' * 10 ** 6)",
    "import sys, threading\nthreading.Thread(target=lambda: sys.stdin.read(), daemon=True).start()\n1 / 0",
)
LOOK = """
import os
status = open(f"/proc/{os.getppid()}/status").read()
files = sum(len(f) + len(d) for place in ("/tmp", "/task", "/dev/shm") for _, f, d in os.walk(place)) - 1
print(status.split("VmRSS:")[1].split()[0], files, sum(p.isdigit() for p in os.listdir("/proc")))
"""

Way = Callable[[int, int], None]
"""Runs executions number ``first`` up to ``first + count``."""


def program(seed: int) -> Program:
    return Program(SOURCE.replace("{seed}", str(seed)), "call", "Solution.f", CASES, time_s=30.0)


def expect(output: Any, seed: int) -> None:
    if output != [*([["a", "b", str(seed)]] * len(CASES))]:
        raise RuntimeError(f"a wrong result in execution {seed}: {str(output)[:200]}")


def job(seed: int) -> bytes:
    return json.dumps({"source": program(seed).source, "cases": CASES}).encode()


def warm(pool: Pool) -> Way:
    def run(first: int, count: int) -> None:
        for seed, ran in enumerate(pool.run([program(seed) for seed in range(first, first + count)]), first):
            expect([json.loads(case.value) for case in ran.cases], seed)

    return run


def process(*flags: str) -> Way:
    def run(first: int, count: int) -> None:
        for seed in range(first, first + count):
            done = subprocess.run([PYTHON, *flags, "-c", DRIVER], input=job(seed), stdout=subprocess.PIPE, check=True)
            expect(json.loads(done.stdout), seed)

    return run


def execs(stack: ExitStack, backend: Backend) -> Way:
    sandbox = stack.enter_context(backend.create(this_process("benchmark")))

    def run(first: int, count: int) -> None:
        for seed in range(first, first + count):
            done = sandbox.exec(["python3", "-I", "-c", DRIVER], timeout_s=60.0, stdin=job(seed))
            expect(json.loads(done.stdout or b"null"), seed)

    return run


def backends() -> dict[str, Backend]:
    """Those that work here; the others are said to be left out."""
    found = {}
    for name in BACKENDS:
        try:
            found[name] = open_backend(name)
        except SandboxUnavailable as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def compare(found: dict[str, Backend], warm_on: str, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per execution by way: median, least and most over rounds, and the ratio to ``process``, which is the
    median over rounds of ratios within a round."""
    with ExitStack() as stack:
        ways: dict[str, tuple[Way, int]] = {}
        for count in (1, 2):
            pool = Pool(found[warm_on], this_process("benchmark"), workers=count)
            ways[f"warm {count}"] = (warm(stack.enter_context(pool)), 150 * count)
        ways["process"] = (process("-I"), 10)
        ways["bare process"] = (process("-I", "-S"), 10)
        for name, backend in found.items():
            ways[f"{name} exec"] = (execs(stack, backend), 10)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-1, rounds):  # the first turn only warms up
            for name, (way, count) in ways.items():
                began = time.perf_counter()
                way((turn + 1) * count, count)
                if turn >= 0:
                    taken[name].append((time.perf_counter() - began) / count * 1000)
    return {
        name: {
            "ms": statistics.median(times),
            "least_ms": min(times),
            "most_ms": max(times),
            "per_minute": 60_000 / statistics.median(times),
            "times_process": statistics.median(p / t for p, t in zip(taken["process"], times, strict=True)),
        }
        for name, times in taken.items()
    }


def latency(backend: Backend, repeats: int = 5) -> dict[str, float]:
    """Median milliseconds of a sandbox's start, a command in it, its end; and of a worker until its first result."""
    parts: dict[str, list[float]] = {"start": [], "exec": [], "close": [], "worker": []}
    owner = this_process("benchmark")

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        parts[part].append((time.perf_counter() - began) * 1000)

    for seed in range(repeats):
        with timed("start"):
            sandbox = backend.create(owner)
        with timed("exec"):
            sandbox.exec(["true"], timeout_s=60.0)
        with timed("close"):
            sandbox.close()
        with Pool(backend, owner) as pool, timed("worker"):
            pool.run([program(seed)])
    return {part: statistics.median(times) for part, times in parts.items()}


def state(pool: Pool, number: int) -> dict[str, int]:
    """What could have grown. The workers' descriptors are seen where they are our own descendants."""
    look = Program(LOOK + f"# {number}", "script", time_s=30.0)
    rss_kb, files, inside = map(int, pool.run([look])[0].cases[0].value.split())
    here = psutil.Process()
    family = here.children(recursive=True)
    return {
        "executions": number,
        "our memory kB": here.memory_info().rss // 1024,
        "our descriptors": here.num_fds(),
        "our threads": here.num_threads(),
        "our processes": len(family),
        "their descriptors": sum(child.num_fds() for child in family),
        "a worker's memory kB": rss_kb,
        "files in a sandbox": files,
        "processes in a sandbox": inside,
        "temporary files": len(os.listdir(tempfile.gettempdir())),  # noqa: PTH208  (names alone)
    }


def soak(backend: Backend, count: int) -> list[dict[str, int]]:
    """The state at ten moments of ``count`` executions; a little warm-up comes before the first."""
    states = []
    with Pool(backend, this_process("benchmark"), workers=2) as pool:
        done, marks = 0, [200, *(200 + count * i // 10 for i in range(1, 11))]
        for mark in marks:
            while done < mark:
                block = range(done, min(done + 500, mark))
                ran = pool.run([ill(i) if i % 10 == 9 else program(i) for i in block])
                for seed, result in zip(block, ran, strict=True):
                    if seed % 10 != 9:
                        expect([json.loads(case.value) for case in result.cases], seed)
                done = block.stop
            states.append(state(pool, done))
            print(json.dumps(states[-1]), file=sys.stderr, flush=True)
    return states


def ill(number: int) -> Program:
    return Program(ILL[number // 10 % len(ILL)] + f"\n# {number}", "script", time_s=30.0, memory_mb=64)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    shown = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(head), ["---"] * len(head), *shown])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="blocks per way (0: no comparison)")
    parser.add_argument("--soak", type=int, default=2000, help="executions of the soak (0: none)")
    parser.add_argument("--warm", default="bubblewrap", help="backend of the warm workers: " + " or ".join(BACKENDS))
    parser.add_argument("--out", type=Path, help="file for the JSON that is printed last")
    args = parser.parse_args()
    found = backends()
    if args.warm not in found:
        print(f"--warm {args.warm} does not work here", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"isolation": {name: str(backend.isolation()) for name, backend in found.items()}}
    if args.rounds:
        result["execution"] = compare(found, args.warm, args.rounds)
        head = ["way", "ms", "least", "most", "per minute", "times process"]
        print(table(head, [[name, *row.values()] for name, row in result["execution"].items()]) + "\n")
        result["latency"] = {name: latency(backend) for name, backend in found.items()}
        head = ["ms", "start", "exec", "close", "worker to first result"]
        print(table(head, [[name, *row.values()] for name, row in result["latency"].items()]) + "\n")
    if args.soak:
        result["soak"] = states = soak(found[args.warm], args.soak)
        rows = [[key, states[0][key], states[-1][key], states[-1][key] - states[0][key]] for key in states[0]]
        print(table(["soak", "first", "last", "growth"], rows) + "\n")
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
