"""One hardened container and the processes run in it."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxes.docker_engine import ANSWER_S, Engine, Gone, Json
from sandboxes.docker_streams import Stream
from sandboxes.types import ENVIRONMENT, MIB, Limits, Owner, SandboxFailure

USER = "65534:65534"
KEEPERS = 3
"""Processes of ours in each container: init, the time limit, the keeper."""
STARTS = threading.BoundedSemaphore(4)
"""Starts at a time: engines answer many parallel ones with time-outs."""
LOOK_S = 0.25
"""Seconds between looks whether a silent process has ended."""
SWEEP_S = 30.0
REMOVE_S = 30.0

MARK = b"\x06"
# The mark says that the engine has done its part: time counts from it, and what ends without it never ran.
ENTRY = "printf '\\006'; exec env -i " + " ".join(f"{k}={v}" for k, v in ENVIRONMENT.items()) + ' "$@"'
# JSON carries text only: words of other bytes (surrogates, as os.fsdecode makes them) travel escaped.
UNESCAPE = 'for w do shift; v=$(printf "%b." "$w"); set -- "$@" "${v%.}"; done; '
TOOL = "printf '\\006'; "

# kill(-1) spares the caller and what it may not signal: init and the keeper, which are root's. It succeeds whether or not
# there was anything to kill, so the owners in /proc tell when the last process is reaped. Builtins only: nothing is forked.
# Then comes the counter of processes killed for memory (cgroup v2, v1).
COUNTER = """
for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    if [ -r $f ]; then while read -r k v; do if [ "$k" = oom_kill ]; then echo "oom $v"; fi; done < $f; fi
done
"""
SWEEP = (
    """
i=0
while :; do
    kill -9 -1 2>/dev/null
    left=
    for p in /proc/[0-9]*; do if [ -O "$p" ] && [ "$p" != /proc/$$ ]; then left=1; fi; done
    if [ -z "$left" ]; then break; fi
    i=$((i + 1))
    if [ $i -gt 20 ]; then sleep 0.02; fi
    if [ $i -gt 500 ]; then exit 1; fi
done
echo swept
"""
    + COUNTER
)


@dataclass(frozen=True)
class Talk:
    """How a process's run ended. ``exit_code`` is None unless it ended by itself."""

    stop: Literal["exit", "timeout", "output_limit"]
    out: bytes
    err: bytes
    exit_code: int | None
    wall_s: float


class Process:
    """A process in a container, attached."""

    def __init__(self, engine: Engine, exec_id: str, stream: Stream) -> None:
        self.stream = stream
        self._engine, self._id = engine, exec_id

    def exit_code(self) -> int | None:
        """None while it runs. Raises Gone when the container went with it."""
        with self._engine.doing("look after a process"):
            state = self._engine.api.exec_inspect(self._id)
        return None if state["Running"] or state["ExitCode"] is None else int(state["ExitCode"])


class Container:
    """A started container; it ends when its keeper's input ends: with ``close``, with our process, or at the deadline.

    Raises Gone from every method once it has ended, SandboxFailure when the engine fails.
    """

    def __init__(self, engine: Engine, image: str, owner: Owner, limits: Limits, runtime: str | None) -> None:
        self.engine, self.limits = engine, limits
        self.name = f"evotrainer-{_word(owner.run)}-{secrets.token_hex(6)}"
        self.deadline = time.time() + owner.lifetime_s
        with STARTS:
            with engine.doing("create a container"):
                self.id = str(engine.api.create_container(**self._config(image, owner, runtime))["Id"])
            try:
                # Attached before the start, so that there is no moment at which our death goes unnoticed.
                self._keeper = engine.upgrade(f"/containers/{self.id}/attach?stream=1&stdin=1", {})
                with engine.doing("start a container"):
                    engine.api.start(self.id)
            except BaseException:
                self.remove()
                raise

    def _config(self, image: str, owner: Owner, runtime: str | None) -> Json:
        from docker.types import LogConfig, Ulimit

        limits, api = self.limits, self.engine.api
        memory = limits.memory_mb * MIB
        host = api.create_host_config(
            runtime=runtime, init=True, auto_remove=True, network_mode="none", ipc_mode="private", cgroupns="private",
            read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"], tmpfs=_tmpfs(limits),
            mem_limit=memory, memswap_limit=memory, pids_limit=limits.pids + KEEPERS,
            nano_cpus=int(min(limits.cpus, self.engine.info["NCPU"]) * 1e9), log_config=LogConfig(type="none"),
            ulimits=[Ulimit(name="core", soft=0, hard=0), Ulimit(name="nofile", soft=1024, hard=4096)],
        )  # fmt: skip
        return {
            "image": image, "name": self.name, "hostname": "sandbox", "user": "0:0", "working_dir": "/", "entrypoint": [],
            "command": ["timeout", "-s", "KILL", str(math.ceil(owner.lifetime_s)), "cat"],
            "environment": dict(ENVIRONMENT), "stdin_open": True, "network_disabled": True, "host_config": host,
            "labels": labels(owner, self.deadline), "healthcheck": {"Test": ["NONE"]},
        }  # fmt: skip

    def start(self, argv: Sequence[str], *, script: str = ENTRY, stdin: bool = True) -> Process:
        """Start ``argv`` (the arguments of ``script``) as the unprivileged user in /task."""
        if not _is_text(argv):
            argv, script = [_escaped(word) for word in argv], UNESCAPE + script
        with self.engine.doing("start a process"):
            created = self.engine.api.exec_create(
                self.id, ["/bin/sh", "-c", script, "sh", *argv], stdin=stdin, user=USER, workdir="/task"
            )
        stream = self.engine.upgrade(f"/exec/{created['Id']}/start", {"Detach": False, "Tty": False})
        deadline = time.monotonic() + ANSWER_S
        try:
            while not stream.out and not stream.ended and time.monotonic() < deadline:
                stream.exchange(memoryview(b""), deadline - time.monotonic())
            if stream.out[:1] != MARK:
                said = " ".join((stream.out + stream.err).decode(errors="replace").split())[:300]
                if not self.is_alive():
                    raise Gone(said or "the container has ended")
                raise SandboxFailure(f"docker: cannot start a process: {said or 'the engine says nothing'}")
        except BaseException:
            stream.close()
            raise
        del stream.out[:1]
        return Process(self.engine, str(created["Id"]), stream)

    def talk(self, process: Process, stdin: bytes, timeout_s: float, limit: int) -> Talk:
        """Give ``stdin``, gather output until it ends or a limit is reached; the process may still run then."""
        stream, pending = process.stream, memoryview(stdin)
        began = time.monotonic()
        deadline, look = began + timeout_s, began + LOOK_S
        stop: Literal["exit", "timeout", "output_limit"] = "exit"
        code: int | None = None
        if not pending:
            stream.finish()
        try:
            while True:
                now, had = time.monotonic(), len(stream.out) + len(stream.err)
                if had > limit:
                    stop = "output_limit"
                    break
                if stream.ended or now >= look:
                    # A child that outlives it may hold its output open, and it may close its output itself.
                    code, look = process.exit_code(), now + LOOK_S
                if code is not None and stream.ended:
                    break
                if now >= deadline:
                    stop = "timeout" if code is None else "exit"
                    break
                wait = min(deadline, look) - now if code is None else 0.05
                sent = stream.exchange(pending, 0.005 if stream.ended else wait)
                pending = pending[sent:]
                if sent and not pending:
                    stream.finish()
                if code is not None and len(stream.out) + len(stream.err) == had:
                    break
        finally:
            stream.close()
        out, err = bytes(stream.out[:limit]), bytes(stream.err)
        return Talk(stop, out, err[: limit - len(out)], code if stop == "exit" else None, time.monotonic() - began)

    def sweep(self) -> int:
        """Kill every process of the unprivileged user; how many the kernel has killed for memory so far.

        Where that cannot be done the whole container is removed, which is then what the program brought about.
        """
        failure = ""
        for attempt in range(3):
            try:
                if attempt:
                    # A fork bomb leaves no room for the sweep's own processes.
                    self._allow(self.limits.pids + KEEPERS + 64)
                talk = self.talk(self.start([], script=TOOL + SWEEP, stdin=False), b"", SWEEP_S, 4096)
                if attempt:
                    self._allow(self.limits.pids + KEEPERS)
                if talk.exit_code == 0 and talk.out.startswith(b"swept"):
                    return _count(talk.out)
                failure = f"{talk.stop} {talk.exit_code} {talk.err[:200]!r}"
            except SandboxFailure as error:
                failure = str(error)
            if not self.is_alive():
                raise Gone("the container has ended")
            time.sleep(0.1)
        self.remove()  # an engine that fails does so here too, and then it was not the program
        raise Gone(f"what ran in it could not be ended, so it was removed: {failure}")

    def oom_kills(self) -> int:
        """How many processes the kernel has killed for memory in this container."""
        return _count(self.talk(self.start([], script=TOOL + COUNTER, stdin=False), b"", SWEEP_S, 4096).out)

    def _allow(self, pids: int) -> None:
        self.engine.post(f"/containers/{self.id}/update", {"PidsLimit": pids})

    def is_alive(self) -> bool:
        """Whether it runs. Raises SandboxFailure when the engine does not say."""
        try:
            with self.engine.doing("look after a container"):
                return bool(self.engine.api.inspect_container(self.id)["State"]["Running"])
        except Gone:
            return False

    def remove(self) -> None:
        """Kill everything in it and remove it; returns when it is gone. Raises SandboxFailure."""
        keeper = getattr(self, "_keeper", None)
        if keeper is not None:
            keeper.close()
        remove(self.engine, self.id)


def remove(engine: Engine, container: str) -> None:
    """Remove a container and wait until it is gone, whoever removes it. Raises SandboxFailure."""
    deadline = time.monotonic() + REMOVE_S
    while True:
        try:
            with engine.doing("remove a container"):
                engine.api.remove_container(container, force=True, v=True)
                return
        except Gone:
            pass  # gone already, or on its way
        try:
            with engine.doing("look after a container"):
                engine.api.inspect_container(container)
        except Gone:
            return
        if time.monotonic() > deadline:
            raise SandboxFailure(f"docker: container {container} cannot be removed")
        time.sleep(0.02)


def labels(owner: Owner, deadline: float) -> dict[str, str]:
    """What tells a container of ours, and whether it is a leftover."""
    return {
        "evotrainer.run": owner.run,
        "evotrainer.pid": str(owner.pid),
        "evotrainer.started": str(owner.started),
        "evotrainer.host": this_host(),
        "evotrainer.deadline": str(math.ceil(deadline)),
    }


def this_host() -> str:
    """Where a process number means something: this machine since its boot, and this process namespace."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115  (the link's text is no path)
    except OSError:
        pass  # no Linux: the name has to do
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _tmpfs(limits: Limits) -> dict[str, str]:
    """The writable places, whose shares add up to the limits. An engine cannot put one tmpfs behind several folders, so
    each has its part: most of it /task, where the work is."""
    size, inodes = limits.disk_mb * MIB, limits.inodes
    parts = {"/tmp": (size // 4, inodes // 8), "/dev/shm": (size // 16, inodes // 32)}
    parts["/task"] = (size - sum(p[0] for p in parts.values()), inodes - sum(p[1] for p in parts.values()))
    common = "rw,exec,nosuid,nodev,mode=1777,uid=65534,gid=65534"
    return {path: f"{common},size={part},nr_inodes={max(count, 2)}" for path, (part, count) in parts.items()}


def _count(answer: bytes) -> int:
    return sum(int(line.split()[1]) for line in answer.splitlines() if line.startswith(b"oom "))


def _is_text(argv: Sequence[str]) -> bool:
    try:
        return all(word.encode() is not None for word in argv)
    except UnicodeEncodeError:
        return False


def _escaped(word: str) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\0{b:03o}" for b in os.fsencode(word))


def _word(run: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in run)[:40] or "run"
