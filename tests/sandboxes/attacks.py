"""What the attack suites share: a hostile program, its marks, and the look at the host afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from sandboxes.types import MIB, Backend, Executed, Limits, Owner, Sandbox

LIMITS = Limits(memory_mb=128, pids=32, disk_mb=16, inodes=600)

PRELUDE = """
import ctypes, errno, json, mmap, os, signal, socket, struct, subprocess, sys, threading, time
os.environ["ATTACK"] = sys.argv[1]
got = []
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        result = action()
    except Exception:
        return
    got.append((name, repr(result)[:200]))
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def system(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if type(a) is int else a for a in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), str(number))
    return result
"""


@dataclass
class Victim:
    """A sandbox under attack, and the mark that its processes carry on the host too."""

    sandbox: Sandbox
    backend: str
    mark: str = field(default_factory=lambda: f"attack-{uuid.uuid4().hex}")

    def run(self, script: str, *, timeout_s: float = 20.0, stdin: bytes = b"", output_limit: int = MIB) -> Executed:
        argv = ["python3", "-c", PRELUDE + script, self.mark]
        return self.sandbox.exec(argv, timeout_s=timeout_s, stdin=stdin, output_limit=output_limit)

    def gains(self, script: str) -> list[list[str]]:
        """Names and results of the attempts in ``script`` that succeeded.

        One that must succeed is made first: without it the script would prove nothing.
        """
        control = 'attempt("control", lambda: open("/etc/passwd").read(4))\n'
        done = self.run(control + script + "\nprint(json.dumps(got))")
        assert (done.kind, done.exit_code) == ("exit", 0), done
        import json

        gained: list[list[str]] = json.loads(done.stdout)
        assert gained[:1] == [["control", "'root'"]], done
        return gained[1:]

    def survivors(self) -> list[str]:
        """Processes of the attack that live on, seen from the host (those that are just ending get a moment)."""
        for _ in range(100):
            left = []
            for process in psutil.process_iter():
                try:
                    marked = self.mark in process.environ().get("ATTACK", "") or self.mark in process.cmdline()
                    if marked and process.status() != psutil.STATUS_ZOMBIE:
                        left.append(str(process))
                except psutil.Error:
                    continue
            if not left:
                return []
            time.sleep(0.05)
        return left


@contextmanager
def victim(backend: Backend, owner: Owner, limits: Limits = LIMITS) -> Iterator[Victim]:
    """A sandbox to attack; after the attack the host is looked at, and the sandbox works or says that it is dead."""
    with backend.create(owner, limits) as sandbox:
        under_attack = Victim(sandbox, backend.name)
        yield under_attack
        assert under_attack.survivors() == []
        if sandbox.is_alive():
            again = sandbox.exec(["echo", "still here"], timeout_s=20.0)
            assert (again.kind, again.exit_code, again.stdout) == ("exit", 0, b"still here\n"), again
            sandbox.write("/task/after", b"x")
            assert sandbox.read("/task/after") == b"x"
        else:
            assert sandbox.exec(["true"], timeout_s=20.0).kind == "died"
    assert not sandbox.is_alive()
    assert under_attack.survivors() == []
