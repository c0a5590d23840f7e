"""What is Docker's own: how a container is made and ends, the engine going away, the image."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sandboxes import images
from sandboxes.backends import open_backend
from sandboxes.docker import DockerBackend, DockerSandbox
from sandboxes.docker_engine import Gone
from sandboxes.docker_streams import Stream
from sandboxes.types import MIB, Limits, Owner, SandboxFailure, SandboxUnavailable
from tests.backends import backend_or_skip
from tests.sandboxes.test_leftovers import eventually

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_mb=64, pids=16, disk_mb=8, inodes=200)


@pytest.fixture(scope="module")
def docker() -> DockerBackend:
    backend = backend_or_skip("docker")
    assert isinstance(backend, DockerBackend)
    return backend


@pytest.fixture(scope="module")
def api(docker: DockerBackend) -> Any:
    return docker._connect().api


def container_of(sandbox: DockerSandbox) -> str:
    return sandbox._container.id


# --------------------------------------------------------------------------------- without an engine


def frame(number: int, data: bytes) -> bytes:
    return bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def test_frames_are_put_together_however_they_arrive() -> None:
    wire = frame(1, b"one") + frame(2, b"") + frame(2, b"\xe2\x82") + frame(1, bytes(300)) + frame(2, b"\xac")
    for size in range(1, len(wire) + 1):
        for early in (0, size):  # what came with the answer's headers must not be lost
            ours, theirs = socket.socketpair()
            stream = Stream(ours, wire[:early])
            for start in range(early, len(wire), size):
                theirs.sendall(wire[start : start + size])
                stream.exchange(memoryview(b""), 1.0)
            theirs.close()
            while not stream.ended:
                stream.exchange(memoryview(b""), 1.0)
            stream.close()
            assert (bytes(stream.out), bytes(stream.err)) == (b"one" + bytes(300), b"\xe2\x82\xac"), (size, early)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DOCKER_HOST", "unix:///nowhere/docker.sock", r"docker: no engine answers at unix:///nowhere/docker.sock \(.+\); start"),
        ("DOCKER_HOST", "tcp://127.0.0.1:1", r"docker: no engine answers at tcp://127.0.0.1:1 \(.+\); start one or set"),
        ("DOCKER_HOST", "ssh://me@there", r"docker: only unix:// and plain tcp:// engines are supported, not ssh://me@there"),
        ("DOCKER_HOST", "nonsense", r"docker: no engine answers at nonsense \(.+\); start one or set DOCKER_HOST"),
    ],
)  # fmt: skip
def test_no_engine_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SandboxUnavailable, match=rf"^{said}") as caught:
        open_backend("docker")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    done = subprocess.run(
        [sys.executable, "-m", "sandboxes.images", "show"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{caught.value}\n")


def test_an_archive_of_the_system_depends_on_content_alone(tmp_path: Path) -> None:
    def made(name: str, order: list[str]) -> bytes:
        root = tmp_path / name
        for path in order:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(path.encode() * 1000)
            os.utime(root / path, (1000, 1000))
        (root / "usr/link").symlink_to("bin/a")
        return b"".join(images.archive(root))

    names = ["usr/bin/b", "usr/bin/a", "etc/z", "etc/" + "n" * 150]
    first, second = made("first", names), made("second", names[::-1])
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
    with tarfile.open(fileobj=BytesIO(first)) as tar:
        members = tar.getmembers()
        assert [m.name for m in members] == sorted(m.name for m in members)
        assert {(m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, "", "")}
        assert tar.extractfile("usr/bin/a").read() == b"usr/bin/a" * 1000  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------ how it is made


@pytest.mark.docker
def test_a_container_is_hardened_as_promised(docker: DockerBackend, owner: Owner, api: Any) -> None:
    with docker.create(owner, LIMITS) as sandbox:
        made = api.inspect_container(container_of(sandbox))
        status = sandbox.exec(["cat", "/proc/self/status"], timeout_s=60.0).stdout.decode()
        devices = sandbox.exec(["cat", "/proc/net/dev"], timeout_s=60.0).stdout.decode().splitlines()[2:]
        keeper = sandbox.exec(["sh", "-c", "kill -9 1 2>&1; for p in /proc/[0-9]*; do ls -ld $p; done"], timeout_s=60.0)
        assert sandbox.exec(["true"], timeout_s=60.0).exit_code == 0
    host = made["HostConfig"]
    expected: dict[str, object] = {
        "NetworkMode": "none", "ReadonlyRootfs": True, "Privileged": False, "CapAdd": None, "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"], "Memory": 64 * MIB, "MemorySwap": 64 * MIB, "NanoCpus": 10**9, "Init": True,
        "AutoRemove": True, "PidMode": "", "IpcMode": "private", "Binds": None, "Devices": None, "PortBindings": None,
    }  # fmt: skip
    assert {key: host[key] or None if expected[key] is None else host[key] for key in expected} == expected
    assert 16 <= host["PidsLimit"] <= 20
    sizes = [dict(o.partition("=")[::2] for o in options.split(",")) for options in host["Tmpfs"].values()]
    assert sum(int(options["size"]) for options in sizes) == 8 * MIB
    assert sum(int(options["nr_inodes"]) for options in sizes) <= 200
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"], fields["Uid"]) == ("1", "2", "65534\t65534\t65534\t65534")
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    assert b"not permitted" in keeper.stdout.lower() or b"denied" in keeper.stdout.lower(), keeper
    assert {name for name in made["Config"]["Labels"] if name.startswith("evotrainer.")} >= {
        "evotrainer.run", "evotrainer.pid", "evotrainer.started", "evotrainer.host", "evotrainer.deadline",
    }  # fmt: skip


@pytest.mark.docker
def test_an_image_that_is_missing_is_not_pulled(
    docker: DockerBackend, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTRAINER_SANDBOX_IMAGE", "evotrainer-no-such-image:1")
    for attempt in (docker.isolation, lambda: docker.create(owner), lambda: docker.spawn(["true"], owner)):
        with pytest.raises(
            SandboxUnavailable, match=r"evotrainer-no-such-image:1.* is missing.*sandboxes\.images build"
        ):
            attempt()


@pytest.mark.docker
def test_an_unknown_runtime_is_refused_with_the_known(docker: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTRAINER_DOCKER_RUNTIME", "runsc-none")
    with pytest.raises(SandboxUnavailable, match=r"runsc-none is unknown to the engine: .*runc"):
        docker.isolation()
    monkeypatch.setenv("EVOTRAINER_DOCKER_RUNTIME", "runc")
    assert docker.isolation().level == "container+runc"


@pytest.mark.docker
def test_an_image_is_built_used_and_replaced(
    docker: DockerBackend, owner: Owner, api: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"evotrainer-test-{os.getpid()}:x"
    monkeypatch.setenv("EVOTRAINER_SANDBOX_IMAGE", name)
    try:
        assert images.main(["show"]) == 1
        assert capsys.readouterr().err.startswith(f"docker: image {name!r} is missing")
        assert images.main(["build"]) == 0
        first = api.inspect_image(name)["Id"]
        assert first in capsys.readouterr().out
        with docker.create(owner, LIMITS) as sandbox:
            code = "import ctypes, decimal, hashlib, lzma, sqlite3, ssl, zlib; print('works')"
            assert sandbox.exec(["python3", "-I", "-c", code], timeout_s=60.0).stdout == b"works\n"
        assert images.main(["build"]) == 0
        assert api.inspect_image(name)["Id"] == first  # nothing has changed
        assert images.main(["build", "--anew"]) == 0
        second = api.inspect_image(name)["Id"]
        assert second != first  # it carries its time
        assert [i for i in api.images(all=True) if i["Id"] == first] == []  # none piles up
        assert sorted(api.inspect_image(name)["Config"]["Env"])[0].startswith("HOME=")
    finally:
        with suppress(Exception):
            api.remove_image(name, force=True)


# ------------------------------------------------------------------------------------- how it ends


@pytest.mark.docker
def test_a_container_that_goes_during_a_command_died_and_before_it_was_us(
    docker: DockerBackend, owner: Owner, api: Any
) -> None:
    with docker.create(owner, LIMITS) as sandbox, ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.exec, ["sh", "-c", "echo on its way; exec sleep 300"], timeout_s=250.0)
        assert eventually(
            lambda: (
                b"sleep" in str(api.top(container_of(sandbox))).encode()
                and "300" in str(api.top(container_of(sandbox)))
            )
        )
        api.remove_container(container_of(sandbox), force=True)
        assert running.result().kind == "died"
        assert sandbox.exec(["true"], timeout_s=60.0).kind == "died"
        assert not sandbox.is_alive()
        with pytest.raises(SandboxFailure):
            sandbox.write("x", b"x")
    with docker.create(owner, LIMITS) as sandbox:
        api.remove_container(container_of(sandbox), force=True)
        assert sandbox.exec(["true"], timeout_s=60.0).kind == "infra_failure"


@pytest.mark.docker
def test_a_container_ends_with_its_process_and_with_its_time(docker: DockerBackend, owner: Owner, api: Any) -> None:
    code = """
import os, signal
from sandboxes.backends import open_backend
from sandboxes.owners import this_process
from sandboxes.types import Limits
backend, owner = open_backend("docker"), this_process("ends", 600.0)
kept = backend.create(owner), backend.spawn(["sleep", "300"], owner)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as killed:
        killed.wait()
    mine = {"label": f"evotrainer.pid={killed.pid}"}
    assert eventually(lambda: api.containers(all=True, filters=mine) == [])  # nobody reaps here

    with docker.create(replace(owner, lifetime_s=1.0), LIMITS) as short:
        late = short.exec(["sleep", "300"], timeout_s=250.0)
        assert late.kind == "infra_failure" and "lifetime" in late.detail  # not the program's fault
        assert eventually(lambda: api.containers(all=True, filters={"id": container_of(short)}) == [])


@pytest.mark.docker
@pytest.mark.timeout(60)  # less than our patience with an engine: the connection stays open after a refusal
def test_a_refusal_is_read_to_its_end_and_no_further(docker: DockerBackend) -> None:
    with pytest.raises(Gone, match="No such exec"):
        docker._connect().upgrade("/exec/none/start", {"Detach": False, "Tty": False})
    with pytest.raises(SandboxFailure, match=r"the engine answers [45]"):
        docker._connect().upgrade("/containers/create", {"HostConfig": 1})


class Relay:
    """A socket that leads to the engine until it is cut."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.path = str(folder / "relay.sock")
        self._engine, self._open = engine, list[socket.socket]()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._engine)
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for end in [self._server, *self._open]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        Path(self.path).unlink()


@pytest.mark.docker
def test_an_engine_that_goes_away_is_an_accident_of_ours(
    docker: DockerBackend,
    owner: Owner,
    api: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        pytest.skip("the relay leads to a Unix socket")
    relay = Relay(tmp_path_factory.mktemp("r"), address.removeprefix("unix://"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{relay.path}")
    backend = DockerBackend()
    sandbox = backend.create(owner, LIMITS)
    channel = backend.spawn(["cat"], owner, LIMITS)
    assert sandbox.exec(["echo", "through"], timeout_s=60.0).stdout == b"through\n"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.exec, ["sleep", "300"], timeout_s=250.0)
        time.sleep(1.0)
        relay.cut()
        assert running.result().kind == "infra_failure"
    assert sandbox.exec(["true"], timeout_s=60.0).kind == "infra_failure"
    for broken in (
        lambda: sandbox.read("x"),
        sandbox.is_alive,
        sandbox.close,
        channel.close,
        lambda: backend.create(owner),
    ):
        with pytest.raises(SandboxFailure):
            broken()
    with pytest.raises(EOFError):
        channel.read(1, 60.0)
    # Its connection gone, each container ends by itself.
    gone = [container_of(sandbox), channel._container.id]
    assert eventually(lambda: not {c["Id"] for c in api.containers(all=True)} & set(gone))


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, owner: Owner) -> Iterator[None]:
    """Every test here cleans up after itself."""
    if not request.node.get_closest_marker("docker"):
        yield
        return
    api = request.getfixturevalue("api")
    yield
    found = api.containers(all=True, filters={"label": f"evotrainer.pid={owner.pid}"})
    assert [container["Names"] for container in found] == []
