"""What a killed process leaves behind is swept, and only that (case 25 of the reports on similar systems)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sandboxes.types import Backend, Limits, Owner

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_mb=64, pids=16, disk_mb=8, inodes=200)

HOST = """
import os, sys, threading
from sandboxes.backends import open_backend
from sandboxes.owners import this_process
from sandboxes.types import Limits
backend, owner = open_backend(sys.argv[1]), this_process("left/over run", 600.0)
limits = Limits(memory_mb=64, pids=16, disk_mb=8, inodes=200)
wait = ["python3", "-c", "import sys, time; print('started', flush=True); time.sleep(300)", sys.argv[2]]
boxes = [backend.create(owner, limits) for _ in range(2)]
channels = [backend.spawn(wait, owner, limits) for _ in range(2)]
for channel in channels:
    assert channel.read(8, 60.0) == b"started\\n"
if sys.argv[3] == "busy":
    for box in boxes:
        threading.Thread(target=box.exec, args=(wait,), kwargs={"timeout_s": 250.0}, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print(boxes[0].exec(["true"], timeout_s=60.0).kind, flush=True)
"""


@contextmanager
def host(backend: Backend, mark: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A process with two sandboxes and two channels of its own."""
    command = [sys.executable, "-c", HOST, backend.name, mark, mode]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def marked(mark: str) -> list[int]:
    """Processes on this machine that carry the mark, the host itself apart."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if mark in command and HOST not in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def engine_names(pid: int) -> list[str]:
    """Ids of the containers on the engine that name ``pid`` as owner."""
    import docker

    return [
        str(c["Id"]) for c in docker.from_env().api.containers(all=True, filters={"label": f"evotrainer.pid={pid}"})
    ]


def places(names: list[str]) -> list[str]:
    """Control groups, mounts and temporary folders that carry one of the names."""
    groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if any(name in folder for name in names)]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if any(name in line for name in names)]
    folders = [str(path) for path in Path("/tmp").iterdir() if any(name in path.name for name in names)]
    return groups + mounts + folders


def names_of(backend: Backend, pid: int) -> list[str]:
    """How the sandboxes of an owner are called in the places where they leave traces."""
    return engine_names(pid) if backend.name == "docker" else [f"evotrainer-{pid}-"]


def is_here(backend: Backend) -> bool:
    """Whether the sandboxes' processes run on this machine, where they can be seen."""
    import docker

    return backend.name != "docker" or docker.from_env().api.info()["Name"] == socket.gethostname()


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_what_a_killed_process_leaves_is_swept_and_nothing_else(backend: Backend, owner: Owner) -> None:
    if not is_here(backend):
        pytest.skip("the engine is on another machine: nobody here sees its processes")
    stamp = time.monotonic_ns()
    dying, living = f"dying-{stamp}", f"living-{stamp}"
    with (
        host(backend, living, "idle") as other,
        host(backend, dying, "busy") as killed,
        backend.create(owner, LIMITS) as own,
    ):
        assert eventually(lambda: len(marked(dying)) >= 4)  # two commands in the middle, two channels
        assert len(marked(living)) >= 2
        names = names_of(backend, killed.pid)
        if backend.isolation().limits == "cgroup":
            assert places(names)  # the places looked at are those where something is
        killed.kill()
        killed.wait()
        backend.reap()
        assert eventually(lambda: marked(dying) == [])
        if backend.name == "docker":
            assert engine_names(killed.pid) == []
        assert eventually(lambda: places(names) == [])

        assert len(marked(living)) >= 2
        assert other.stdin and other.stdout
        other.stdin.write("again\n")
        other.stdin.flush()
        assert other.stdout.readline() == "exit\n"
        assert own.exec(["true"], timeout_s=60.0).kind == "exit"


@pytest.mark.docker
def test_containers_of_nobody_we_know_are_left_alone(owner: Owner) -> None:
    """Without our labels, with those of another machine, or with labels that make no sense: not ours to judge."""
    import docker

    from sandboxes.docker import DockerBackend
    from sandboxes.docker_container import labels
    from sandboxes.images import image_name
    from tests.backends import backend_or_skip

    backend_or_skip("docker")
    api = docker.from_env().api
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours = labels(Owner("r", gone.pid, owner.started), time.time() + 600)
    kept = {
        "evotrainer-foreign": {},
        "evotrainer-elsewhere": ours | {"evotrainer.host": "another"},
        "evotrainer-unreadable": {"evotrainer.run": "r", "evotrainer.pid": "x", "evotrainer.deadline": "soon"},
    }
    swept = {
        "evotrainer-orphan": ours,
        "evotrainer-late": labels(owner, time.time() - 1),
        "evotrainer-late-elsewhere": labels(owner, time.time() - 1) | {"evotrainer.host": "another"},
    }
    made = {}
    try:
        for name, with_labels in {**kept, **swept}.items():
            container = api.create_container(
                image_name(), ["sleep", "300"], name=f"{name}-{gone.pid}", labels=with_labels
            )
            made[f"{name}-{gone.pid}"] = container["Id"]
        with DockerBackend().create(owner, LIMITS):  # the first start of a run sweeps
            pass
        left = {c["Names"][0].removeprefix("/") for c in api.containers(all=True)}
        assert left & made.keys() == {f"{name}-{gone.pid}" for name in kept}
    finally:
        for identity in made.values():
            with suppress(docker.errors.NotFound):
                api.remove_container(identity, force=True)
