"""The contract of isolation: what a sandbox can do, and what can come of running something in it.

Two backends keep it (docker, bubblewrap) and one test suite checks both. Everything that crosses the
border is bytes: nothing is decoded before its end, because a chunk may split a character, and nothing
is cut without saying so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["exit", "timeout", "oom", "output_limit", "died", "infra_failure"]
"""How an execution ended: ``exit`` by itself (any exit code, signals too); killed for ``timeout``, memory
(``oom``) or ``output_limit``; ``died`` when the program took its own sandbox down, which is its own fault;
``infra_failure`` when we failed to run it. Only the last says nothing about the program: it is masked
from every reward and score."""

MIB = 1 << 20

ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
"""All that a command's environment holds, on every backend; nothing comes from ours."""


class SandboxUnavailable(Exception):
    """No usable backend. One line that says what is missing and how to get it."""


class SandboxFailure(Exception):
    """The backend broke (engine gone, image missing): an accident, never an outcome of the program."""


@dataclass(frozen=True)
class Limits:
    """Resources of one sandbox. ``disk_mb`` and ``inodes`` bound all writable places together."""

    memory_mb: int = 512
    pids: int = 64
    cpus: float = 1.0
    disk_mb: int = 64
    inodes: int = 4096


@dataclass(frozen=True)
class Owner:
    """Who answers for a sandbox; leftovers are swept by these labels and never without them.

    ``run`` names the run. A sandbox is a leftover when the process ``pid`` (with ``started``, its start
    time in milliseconds, because pids are reused) is gone, or ``lifetime_s`` after its start have passed;
    it must exceed the longest use.
    """

    run: str
    pid: int
    started: int
    lifetime_s: float = 7200.0


@dataclass(frozen=True)
class Executed:
    """What happened. ``exit_code`` is the program's own (128 + n for signal n), None unless ``kind`` is
    ``exit``; ``truncated`` says that output beyond the limit was thrown away."""

    kind: Kind
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    wall_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Isolation:
    """How strong a backend isolates here, for the report and every rollout.

    ``level`` is one word (``container``, ``container+gvisor``, ``namespaces``); ``limits`` says who
    enforces memory and process counts (``cgroup`` or ``rlimit``); ``notes`` what is weaker than usual.
    """

    backend: str
    level: str
    limits: Literal["cgroup", "rlimit"]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.backend} ({', '.join((self.level, f'limits by {self.limits}', *self.notes))})"


class Sandbox(Protocol):
    """One isolated machine: no network, a read-only system, a writable ``/task`` and ``/tmp`` in memory.

    Commands run as an unprivileged user in ``/task``. After each command every process it left is
    killed; files stay. A context manager: leaving it closes the sandbox.
    """

    def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_limit: int = MIB) -> Executed:
        """Run a command to its end. ``output_limit`` bounds stdout and stderr together, in bytes: the command
        is killed there and the outcome is ``output_limit``. Never raises for anything the command does."""
        ...

    def read(self, path: str, limit: int = 64 * MIB) -> bytes:
        """A file's bytes, read inside (a link is followed there, never here). Raises FileNotFoundError for what
        is no regular file and SandboxFailure beyond ``limit`` bytes."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file, making its folders. Raises OSError where it does not fit or may not be written."""
        ...

    def upload(self, source: Path, target: str) -> None:
        """Copy a file or folder of ours in, links as links."""
        ...

    def download(self, source: str, target: Path) -> None:
        """Copy a file or folder out into ``target``, which must not exist. Untrusted: links that lead out of
        it, devices and FIFOs are refused with SandboxFailure."""
        ...

    def snapshot(self) -> bytes:
        """``/task`` as a tar archive; ``restore`` of it into another sandbox gives the same files."""
        ...

    def restore(self, snapshot: bytes) -> None: ...

    def is_alive(self) -> bool: ...

    def close(self) -> None:
        """End it and remove all of it; twice does no harm."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *_: object) -> None: ...


class Channel(Protocol):
    """The standard streams of a long-lived process that has a sandbox to itself."""

    def write(self, data: bytes) -> None:
        """Raises EOFError when the process is gone."""
        ...

    def read(self, size: int, timeout_s: float) -> bytes:
        """Exactly ``size`` bytes of its stdout. Raises EOFError when it ended before, TimeoutError beyond
        ``timeout_s``; then only ``close`` is left to do."""
        ...

    def was_oom(self) -> bool:
        """Whether the kernel killed something in this sandbox for memory."""
        ...

    def close(self) -> None:
        """Kill it with everything it started, and remove its sandbox."""
        ...


class Backend(Protocol):
    """A way to isolate."""

    name: str

    def isolation(self) -> Isolation:
        """What this backend gives on this machine; raises SandboxUnavailable where it cannot work."""
        ...

    def create(self, owner: Owner, limits: Limits = Limits()) -> Sandbox:
        """A started sandbox. Raises SandboxUnavailable or SandboxFailure."""
        ...

    def spawn(self, argv: Sequence[str], owner: Owner, limits: Limits = Limits()) -> Channel:
        """Run ``argv`` as the main process of a sandbox of its own, as an unprivileged user."""
        ...

    def reap(self) -> list[str]:
        """Remove sandboxes whose owner is gone or whose lifetime is over; names of what was removed."""
        ...


# ------------------------------------------------------------------------------------- programs

Mode = Literal["call", "stdin", "script"]
CaseStatus = Literal["ok", "error", "timeout", "output_limit", "oom", "missing"]


@dataclass(frozen=True)
class Program:
    """A Python program with all its test inputs; expected outputs stay outside, with us.

    ``call``: each case is a JSON array of arguments for the function ``entry``; ``entry`` may be dotted
    (``Solution.f`` makes an instance first). ``stdin``: each case is the text of standard input, the program runs
    anew for each. ``script``: the program is run once as it stands, ``cases`` is empty. ``files`` are written into
    the working directory before. ``time_s`` is the wall limit of one case, ``output_limit`` in bytes for one
    case, ``memory_mb`` the address space of the process.
    """

    source: str
    mode: Mode = "call"
    entry: str = ""
    cases: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    time_s: float = 2.0
    output_limit: int = 64 * 1024
    memory_mb: int = 256


@dataclass(frozen=True)
class CaseResult:
    """What one case gave.

    ``value``: for ``call`` the returned value as JSON, with what JSON lacks tagged (``{"tuple": […]}``, ``{"set":
    […]}``, ``{"dict": [[k, v]…]}``, ``{"repr": text}`` for other objects, ``{"float": "nan"}``); for ``stdin`` and
    ``script`` the standard output, undecodable bytes replaced.
    ``error``: the exception's type and message, one line of at most 300 characters.
    ``missing``: the process ended before this case gave anything.
    """

    status: CaseStatus
    value: str = ""
    error: str = ""


@dataclass(frozen=True)
class Ran:
    """One execution: a program with all its cases in a process of its own. ``cases`` has one entry per case of the
    program (one for ``script``), whatever happened. ``kind`` is that of the process."""

    kind: Kind
    cases: tuple[CaseResult, ...]
    error: str = ""
    wall_s: float = 0.0


class Executor(Protocol):
    """Runs programs; see sandboxes.pool."""

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        """One result per program, in order; never raises for anything a program does."""
        ...

    def close(self) -> None: ...
