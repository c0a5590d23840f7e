"""Warm workers: thousands of short programs a minute, each in a fresh process of a sandbox that is used again.

A worker is a sandbox whose main process is a fork server (sandboxes/guest/forkserver.py). It is started when it is
first needed, gets one program after the other, and resets its sandbox between them; where it cannot show that the
reset is complete it ends, and a new sandbox takes its place. Everything it says is untrusted.
"""

from __future__ import annotations

import json
import marshal
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from sandboxes.pipes import TAKE
from sandboxes.types import (
    ENVIRONMENT,
    MIB,
    Backend,
    CaseResult,
    CaseStatus,
    Channel,
    Kind,
    Limits,
    Owner,
    Program,
    Ran,
    Sandbox,
    SandboxFailure,
    SandboxUnavailable,
)

WORKER_LIMITS = Limits(memory_mb=1024, pids=64, cpus=1.0, disk_mb=64, inodes=4096)
START_S = 60.0
"""Until a fresh worker reacts; also a container engine under load keeps this."""
GRACE_S = 20.0
"""How much later than the worker we lose patience with a program."""
CASE_SLACK_S = 0.5
GIVE_UP = 3
"""Programs in a row that no worker could be started for: then the rest of a call is not tried."""
AHEAD_BYTES = 32 * 1024
"""The next program is sent while one runs, if it fits into a pipe's buffer next to what is being read."""

MODULES = ("preload", "values", "program", "ground", "forkserver")
# Isolated mode ignores PYTHONHASHSEED: the first interpreter only makes the environment of the second.
_FIRST = f"""
import os, sys
environment = { ({**ENVIRONMENT, "PYTHONHASHSEED": "0"})!r}
os.execve(sys.executable, [sys.executable, "-s", "-S", "-B", "-c", sys.argv[1]], environment)
"""
# Each module has builtins of its own, which no program can replace.
_SECOND = f"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import builtins, marshal
{TAKE}
once, sources = marshal.loads(take(int.from_bytes(take(4), "big")))
for name, source in sources:
    module = type(sys)(name)
    module.__dict__["__builtins__"] = dict(vars(builtins))
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
module.main(once)
"""
ARGV = ("python3", "-I", "-S", "-c", _FIRST, _SECOND)

KINDS: dict[str, Kind] = {"exit": "exit", "timeout": "timeout", "output_limit": "output_limit", "died": "died"}
"""What a worker may say; the other kinds are ours to say."""
STATUSES: dict[str, CaseStatus] = {status: status for status in get_args(CaseStatus)}
RESERVE = 4
"""So many programs are left for workers that become idle; see _small."""


class _Malformed(Exception):
    """A worker's answer breaks the protocol."""


class _NotBegun(Exception):
    """The worker failed before anything of the program can have run."""


@dataclass
class _Job:
    """A program as it is sent, and where its result goes: equal programs are one job."""

    program: Program
    request: bytes
    places: list[int]
    is_repeated: bool = False


class Pool:
    """sandboxes.types.Executor with ``workers`` sandboxes of ``limits`` each. For any thread; calls take turns."""

    def __init__(self, backend: Backend, owner: Owner, workers: int = 1, limits: Limits = WORKER_LIMITS) -> None:
        self._workers = [_Worker(backend, owner, limits) for _ in range(workers)]
        self._limits = limits
        self._lock = threading.Lock()

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        """See Executor. Programs that are equal run once, since a program's random state is fixed.

        Raises ValueError for what nobody could run: cases that are no JSON arrays, files that do not fit or lie
        outside of the working directory.
        """
        jobs: dict[bytes, _Job] = {}
        for place, program in enumerate(programs):
            request = _encoded(program, self._limits)
            jobs.setdefault(request, _Job(program, request, [])).places.append(place)
        results: dict[int, Ran] = {}
        with self._lock:
            todo = deque(jobs.values())
            active = self._workers[: len(todo)]
            if len(active) == 1:
                active[0].work(todo, results)
            elif active:
                with ThreadPoolExecutor(len(active), thread_name_prefix="sandbox-worker") as threads:
                    futures = [threads.submit(worker.work, todo, results) for worker in active]
                    try:
                        for future in futures:
                            future.result()
                    finally:
                        todo.clear()  # after a failure or an interrupt nobody begins anything new
        return [results[place] for place in range(len(programs))]

    def close(self) -> None:
        """End all workers; twice does no harm."""
        with self._lock:
            for worker in self._workers:
                worker.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """One sandbox after the other, each with a fork server. For one thread at a time."""

    def __init__(self, backend: Backend, owner: Owner, limits: Limits) -> None:
        self._backend, self._owner, self._limits = backend, owner, limits
        self._channel: Channel | None = None
        self._started = 0.0

    def work(self, todo: deque[_Job], results: dict[int, Ran]) -> None:
        """Take jobs until there are none."""
        failures, is_sent = 0, False
        job = _next(todo)
        try:
            while job:
                ahead = None
                try:
                    channel = self._begin(job, is_sent)
                    failures = 0
                    if not self._is_old() and (ahead := _small(todo)):
                        with suppress(EOFError):  # noticed with the answer of the program that runs
                            channel.write(ahead.request)
                    ran = self._result(job.program, channel)
                except (_NotBegun, SandboxFailure, SandboxUnavailable) as error:
                    self.close()
                    if not job.is_repeated and failures < GIVE_UP:
                        job.is_repeated, is_sent = True, False
                        continue
                    failures += 1
                    ran = Ran("infra_failure", _missing(job.program), _line(str(error)))
                for place in job.places:
                    results[place] = ran
                is_sent = ahead is not None and self._channel is not None
                job = ahead or _next(todo)
        except BaseException:
            self.close()  # what it is doing now would be taken for the next answer
            raise

    def _begin(self, job: _Job, is_sent: bool) -> Channel:
        """Send the job, unless that is done, and wait until the worker has it. Raises _NotBegun and what spawn does."""
        if not is_sent and self._is_old():
            self.close()
        if self._channel is None:
            self._channel = self._backend.spawn(ARGV, self._owner, self._limits)
            self._started = time.monotonic()
            job_and_server = _server(once=False) + job.request
        else:
            job_and_server = b"" if is_sent else job.request
        try:
            if job_and_server:
                self._channel.write(job_and_server)
            if self._channel.read(1, START_S) != b"S":
                raise _NotBegun("the worker spoke nonsense")
        except (EOFError, TimeoutError) as error:
            raise _NotBegun(f"the worker failed before the program began: {error}") from error
        return self._channel

    def _result(self, program: Program, channel: Channel) -> Ran:
        """The answer about the program that has begun: from now on, every end of the worker is its doing."""
        deadline = time.monotonic() + _longest_s(program)
        try:
            size = int.from_bytes(channel.read(4, _longest_s(program)), "big")
            if size > _largest(program):
                raise _Malformed("an answer beyond its size")
            answer = _answer(program, channel.read(size, max(0.1, deadline - time.monotonic())))
        except (EOFError, TimeoutError, _Malformed) as error:
            kind: Kind = "oom" if isinstance(error, EOFError) and channel.was_oom() else "died"
            self.close()
            return Ran(kind, _missing(program), _line(f"the worker failed: {error}"))
        was_oom = answer.is_killed and channel.was_oom()
        if answer.is_last or was_oom:  # the kernel's count of kills stays raised
            self.close()
        return answer.ran(program, was_oom)

    def _is_old(self) -> bool:
        """No worker may reach the end of its lifetime in a program, which would be blamed for it."""
        return self._channel is not None and time.monotonic() - self._started > self._owner.lifetime_s / 2

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def run_once(sandbox: Sandbox, program: Program) -> Ran:
    """The slow path: the same in a fresh interpreter of a sandbox that has other uses too. Files that a program leaves
    outside of its working directory stay. Raises ValueError as Pool.run does."""
    stdin = _server(once=True) + _encoded(program, Limits(disk_mb=1 << 20))
    limit = _largest(program) + 5
    done = sandbox.exec(ARGV, timeout_s=_longest_s(program) + START_S, stdin=stdin, output_limit=limit)
    if done.kind == "infra_failure":
        return Ran("infra_failure", _missing(program), _line(done.detail))
    try:
        if done.stdout[:1] != b"S" or int.from_bytes(done.stdout[1:5], "big") != len(done.stdout) - 5:
            raise _Malformed(done.detail or done.stderr[-300:].decode("utf-8", "replace") or "no answer")
        return _answer(program, done.stdout[5:]).ran(program, done.kind == "oom")
    except _Malformed as error:
        kind: Kind = "oom" if done.kind == "oom" else "died"
        return Ran(kind, _missing(program), _line(f"the worker failed: {error}"))


# ------------------------------------------------------------------------------------ requests


def _next(todo: deque[_Job]) -> _Job | None:
    with suppress(IndexError):  # another thread may take the last one
        return todo.popleft()
    return None


def _small(todo: deque[_Job]) -> _Job | None:
    """A job to be sent while another runs: the worker then never waits for us. None near the end, where an idle worker
    can take it at once, and none that might fill the pipe, since nobody reads it."""
    if len(todo) < RESERVE:
        return None
    job = _next(todo)
    if job and len(job.request) > AHEAD_BYTES:
        todo.appendleft(job)
        return None
    return job


def _framed(value: Any) -> bytes:
    data = marshal.dumps(value, 2)  # later versions write equal values in different ways
    return len(data).to_bytes(4, "big") + data


@cache
def _server(once: bool) -> bytes:
    folder = Path(__file__).with_name("guest")
    return _framed((once, [(f"sandboxes.guest.{name}", folder.joinpath(f"{name}.py").read_text()) for name in MODULES]))


def _encoded(p: Program, limits: Limits) -> bytes:
    """The request for a program; equal programs give equal bytes."""
    if p.mode == "script" and p.cases:
        raise ValueError("a script has no cases")
    if p.mode == "call":
        if not p.entry:
            raise ValueError("a program in call mode needs the name of its entry")
        for case in p.cases:
            if type(json.loads(case)) is not list:
                raise ValueError(f"a case is no JSON array: {case[:80]}")
    for name in p.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r}: not a path below the working directory")
    if sum(map(len, p.files.values())) > limits.disk_mb * MIB // 2 or len(p.files) > limits.inodes // 4:
        raise ValueError(f"files: too many or too large for a sandbox of {limits.disk_mb} MiB")
    files = tuple(sorted((name, bytes(data)) for name, data in p.files.items()))
    cases = tuple(case.strip() if p.mode == "call" else case for case in p.cases)
    return _framed((p.source, p.mode, p.entry, cases, files, float(p.time_s), p.output_limit, p.memory_mb))


def _longest_s(program: Program) -> float:
    """Seconds after which a worker that works has answered."""
    return (len(program.cases) + 2) * (program.time_s + CASE_SLACK_S) + GRACE_S


def _largest(program: Program) -> int:
    """Bytes of the largest honest answer: JSON takes up to six for one."""
    return (len(program.cases) + 1) * (6 * program.output_limit + 8192) + 8192


# ------------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class _Answer:
    kind: Kind
    cases: tuple[tuple[str, str, str], ...]
    error: str
    wall_s: float
    is_last: bool

    @property
    def is_killed(self) -> bool:
        """Whether a process got SIGKILL from another than the worker."""
        return any(status == "killed" for status, _, _ in self.cases)

    def ran(self, program: Program, was_oom: bool) -> Ran:
        """For people; ``was_oom``: it was the kernel, for memory, that killed."""
        killed: CaseStatus = "oom" if was_oom else "missing" if program.mode == "call" else "error"
        cases = tuple(CaseResult(STATUSES.get(status, killed), value, error) for status, value, error in self.cases)
        kind: Kind = "oom" if was_oom and self.is_killed and self.kind == "exit" else self.kind
        return Ran(kind, cases, self.error, self.wall_s)


def _answer(program: Program, data: bytes) -> _Answer:
    """Read an answer that may be forged. Raises _Malformed."""
    try:
        node = json.loads(data, parse_constant=_refuse)
        if type(node) is not dict or node.keys() != {"kind", "cases", "error", "wall_s", "last"}:
            raise ValueError("not its fields")
        rows, wall_s = node["cases"], node["wall_s"]
        if type(rows) is not list or len(rows) != (1 if program.mode == "script" else len(program.cases)):
            raise ValueError("not its cases")
        if type(wall_s) is not float or not 0 <= wall_s < 1e9 or type(node["last"]) is not bool:
            raise ValueError("not its types")
        cases = tuple(_case(row, program) for row in rows)
        return _Answer(KINDS[_text(node["kind"])], cases, _line(_text(node["error"])), wall_s, node["last"])
    except (ValueError, KeyError, RecursionError) as error:
        raise _Malformed(f"not an answer ({error})") from error


def _case(row: Any, program: Program) -> tuple[str, str, str]:
    if type(row) is not list or len(row) != 3:
        raise ValueError("not a case")
    status, value, error = map(_text, row)
    if status not in STATUSES and status != "killed":
        raise ValueError("not a status")
    if len(value) > program.output_limit:
        raise ValueError("a value beyond its limit")
    if program.mode == "call" and (status == "ok") != bool(value):
        raise ValueError("a value where there is none, or none where there is one")
    if value and program.mode == "call":
        json.loads(value, parse_constant=_refuse)
    return status, value, _line(error)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    value.encode()  # half a surrogate pair is no text: UnicodeEncodeError is a ValueError
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _line(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode().split())[:300]


def _missing(program: Program) -> tuple[CaseResult, ...]:
    return (CaseResult("missing"),) * (1 if program.mode == "script" else len(program.cases))
