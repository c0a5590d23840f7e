"""The promises of sandboxes.types, kept by every backend. Attacks on the border and on resources have suites of their own."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.backends import open_backend
from sandboxes.types import ENVIRONMENT, MIB, Backend, Limits, Owner, Sandbox, SandboxFailure, SandboxUnavailable

LIMITS = Limits(memory_mb=128, pids=32, disk_mb=16, inodes=600)
T = 60.0
"""Seconds that nothing here needs, even on a busy machine."""
BINARY = bytes(range(256)) * 12_288
"""3 MiB with every byte."""


def python(code: str, *args: str) -> list[str]:
    return ["python3", "-c", code, *args]


def tree(root: Path) -> dict[str, tuple[int, object]]:
    """Everything below a folder: mode, and content, destination or nothing."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None  # noqa: PTH115
        found[str(path.relative_to(root))] = (0 if path.is_symlink() else mode, content)
    return found


@pytest.fixture
def sandbox(backend: Backend, owner: Owner) -> Iterator[Sandbox]:
    with backend.create(owner, LIMITS) as made:
        yield made


# ----------------------------------------------------------------------------------- commands


def test_a_command_is_no_shell(sandbox: Sandbox) -> None:
    words = ["a b", "$HOME", "*", ";id", "`id`", "-n", "ä€😀", ""]
    done = sandbox.exec(["printf", "<%s>", *words], timeout_s=T)
    assert (done.kind, done.exit_code) == ("exit", 0)
    assert done.stdout.decode() == "".join(f"<{word}>" for word in words)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_an_end_of_its_own_is_an_exit_with_its_code(sandbox: Sandbox, script: str, code: int) -> None:
    done = sandbox.exec(["sh", "-c", script], timeout_s=T)
    assert (done.kind, done.exit_code, done.truncated) == ("exit", code, False)


def test_input_arrives_whole_and_ends(sandbox: Sandbox) -> None:
    assert sandbox.exec(["cat"], timeout_s=T, stdin=BINARY, output_limit=4 * MIB).stdout == BINARY
    assert sandbox.exec(["cat"], timeout_s=T).kind == "exit"  # no input is an input that ends at once
    assert sandbox.exec(["true"], timeout_s=T, stdin=BINARY).exit_code == 0  # nobody has to read it


def test_nothing_of_ours_is_in_its_environment(backend: Backend, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    code = "import os; print(sorted(os.environ.items())); print(os.getcwd(), os.getuid(), os.getgid(), os.getgroups())"
    with backend.create(owner, LIMITS) as sandbox:
        environment, rest = sandbox.exec(python(code), timeout_s=T).stdout.decode().splitlines()
    assert dict(eval(environment)) == dict(ENVIRONMENT)
    assert rest.startswith("/task 65534 65534 ")


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        while True:
            open("beat", "a").write("x")
            time.sleep(0.01)
    os._exit(0)
while not os.path.exists("beat"):
    time.sleep(0.01)
print("before", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("sleep_s", "kind"), [("0", "exit"), ("300", "timeout")])
def test_files_stay_and_processes_do_not(sandbox: Sandbox, sleep_s: str, kind: str) -> None:
    done = sandbox.exec(python(DAEMON, sleep_s), timeout_s=T if kind == "exit" else 5.0)
    assert (done.kind, done.stdout) == (kind, b"before\n")  # what it said before it was killed is kept
    assert done.exit_code == (0 if kind == "exit" else None)
    beats = sandbox.read("beat")
    time.sleep(0.3)
    assert sandbox.read("beat") == beats != b""
    listing = (
        "import os; print(sum(os.stat(f'/proc/{p}').st_uid == os.getuid() for p in os.listdir('/proc') if p.isdigit()))"
    )
    # Itself, and where the keeper has the same user, that.
    assert int(sandbox.exec(python(listing), timeout_s=T).stdout) <= 2


# ------------------------------------------------------------------------------------- output


def test_a_flood_is_cut_where_it_was_said_and_does_not_fill_our_memory(sandbox: Sandbox) -> None:
    code = "import os\nfor i in range(200):\n for fd in (1, 2): os.write(fd, bytes(1 << 20))"
    tracemalloc.start()
    try:
        done = sandbox.exec(python(code), timeout_s=T, output_limit=MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (done.kind, done.exit_code, done.truncated) == ("output_limit", None, True)
    assert len(done.stdout) + len(done.stderr) == MIB
    assert peak < 8 * MIB  # a few copies of the limit; 200 MB or 400 would show


def test_bytes_come_as_they_were_written(sandbox: Sandbox) -> None:
    text = "é€😀".encode()
    code = f"""
import os, time
for byte in {text!r}:
    os.write(1, bytes([byte]))
    os.write(2, bytes([255 - byte]))
    time.sleep(0.02)  # so that each is a chunk of its own
os.write(1, b"\\xff\\xfe\\x00\\r\\n")
"""
    done = sandbox.exec(python(code), timeout_s=T)
    assert done.stdout == text + b"\xff\xfe\x00\r\n"
    assert done.stderr == bytes(255 - byte for byte in text)


def test_memory_has_a_limit_and_going_beyond_has_a_name(backend: Backend, sandbox: Sandbox) -> None:
    done = sandbox.exec(python("x = bytearray(1 << 30); print(len(x))"), timeout_s=T)
    if backend.isolation().limits == "cgroup":
        assert (done.kind, done.exit_code, done.stdout) == ("oom", None, b"")
    assert done.stdout == b""
    after = sandbox.exec(["sh", "-c", "kill -KILL $$"], timeout_s=T)  # looks the same from outside
    assert (after.kind, after.exit_code) == ("exit", 137)


# -------------------------------------------------------------------------------------- files


def test_single_files(sandbox: Sandbox) -> None:
    for path in ("a/b/c.bin", "/task/spaces and ä\n", "/tmp/x"):
        for data in (BINARY[: 2 * MIB], b"", b"shorter"):
            sandbox.write(path, data)
            assert sandbox.read(path) == data
    assert sandbox.read("/task/a/b/c.bin", limit=7) == b"shorter"
    with pytest.raises(SandboxFailure):
        sandbox.read("a/b/c.bin", limit=6)
    for path in ("nothing", "a", "/dev/null", "/dev/full"):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
    for path in ("/etc/new", "a/b/c.bin/under", "a"):
        with pytest.raises(OSError):
            sandbox.write(path, b"x")
    with pytest.raises(OSError):
        sandbox.write("large", bytes(LIMITS.disk_mb * MIB))
    assert sandbox.exec(["cat", "a/b/c.bin"], timeout_s=T).stdout == b"shorter"


def folder(at: Path) -> Path:
    """A folder of ours with all that must survive."""
    (at / "sub" / "empty").mkdir(parents=True)
    (at / "sub" / "data.bin").write_bytes(BINARY)
    (at / "run me.sh").write_text("#!/bin/sh\necho ran\n")
    (at / "run me.sh").chmod(0o755)
    (at / "private").write_text("p")
    (at / "private").chmod(0o600)
    (at / ("n" * 200 + "ä\n")).write_bytes(b"crlf\r\nno newline")
    (at / "link").symlink_to("sub/data.bin")
    (at / "sub" / "up").symlink_to("../private")
    (at / "dangling").symlink_to("nowhere")
    return at


def test_folders_go_in_and_come_out_as_they_were(sandbox: Sandbox, tmp_path: Path) -> None:
    ours = folder(tmp_path / "ours")
    sandbox.upload(ours, "/task/in")
    assert sandbox.exec(["./in/run me.sh"], timeout_s=T).stdout == b"ran\n"
    sandbox.download("/task/in", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(ours)
    sandbox.upload(ours / "sub" / "data.bin", "deep/one.bin")
    sandbox.download("deep/one.bin", tmp_path / "one.bin")
    assert (tmp_path / "one.bin").read_bytes() == BINARY
    with pytest.raises(FileExistsError):
        sandbox.download("deep/one.bin", tmp_path / "one.bin")
    with pytest.raises(FileNotFoundError):
        sandbox.download("nothing", tmp_path / "nothing")
    with pytest.raises(SandboxFailure):  # does not fit
        (tmp_path / "large").write_bytes(bytes(LIMITS.disk_mb * MIB))
        sandbox.upload(tmp_path / "large", "large")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "large", "one.bin", "ours"]


def test_a_snapshot_restores_into_another_sandbox(
    backend: Backend, sandbox: Sandbox, owner: Owner, tmp_path: Path
) -> None:
    sandbox.upload(folder(tmp_path / "ours"), "/task")
    sandbox.exec(
        ["sh", "-c", "mkdir -m 0 locked; git init -q . && git -c user.name=a -c user.email=b add -A"], timeout_s=T
    )
    snapshot = sandbox.snapshot()
    sandbox.download("/task", tmp_path / "first")
    with backend.create(owner, LIMITS) as other:
        script = "mkdir -p old/.x && touch old/.x/f .hidden ..odd ./-dash sub && chmod 0 old && touch private/ 2>/dev/null; true"
        assert other.exec(["sh", "-c", script], timeout_s=T).exit_code == 0
        other.restore(snapshot)
        other.download("/task", tmp_path / "second")
        status = other.exec(["git", "status", "--porcelain"], timeout_s=T)
        assert status.exit_code == 0 and b"A  private\n" in status.stdout, status
    first = tree(tmp_path / "first")
    assert first.keys() > tree(tmp_path / "ours").keys()
    assert tree(tmp_path / "second") == first


# ------------------------------------------------------------------------------- life and death


def test_a_closed_sandbox_says_so_at_once(backend: Backend, owner: Owner) -> None:
    with backend.create(owner, LIMITS) as sandbox:
        assert sandbox.is_alive()
    assert not sandbox.is_alive()
    sandbox.close()
    done = sandbox.exec(["sleep", "300"], timeout_s=600.0)
    assert done.kind in ("died", "infra_failure") and done.detail and done.exit_code is None
    with pytest.raises(SandboxFailure):
        sandbox.read("x")


def test_closing_does_not_wait_for_a_command(backend: Backend, owner: Owner) -> None:
    sandbox = backend.create(owner, LIMITS)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            sandbox.exec, python("open('started', 'w'); import time; time.sleep(300)"), timeout_s=250.0
        )
        time.sleep(1.0)
        sandbox.close()
        assert running.result().kind in ("died", "infra_failure")
    assert not sandbox.is_alive()


def test_a_lifetime_that_is_over(backend: Backend, owner: Owner) -> None:
    with backend.create(replace(owner, lifetime_s=0.5), LIMITS) as short, backend.create(owner, LIMITS) as long:
        time.sleep(1.5)
        backend.reap()
        assert not short.is_alive()
        assert short.exec(["true"], timeout_s=T).kind in ("died", "infra_failure")
        assert long.exec(["true"], timeout_s=T).exit_code == 0


def test_many_at_once_do_not_meet(backend: Backend, owner: Owner) -> None:
    def one(number: int) -> bytes:
        with backend.create(owner, LIMITS) as sandbox:
            sandbox.write("mine", str(number).encode())
            done = sandbox.exec(["sh", "-c", "cat *; ls /tmp"], timeout_s=T)
            assert done.kind == "exit", done
            return done.stdout

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(one, range(8))] == [str(number).encode() for number in range(8)]


# ------------------------------------------------------------------------------------ channels

ECHO = "import os\nwhile data := os.read(0, 65536):\n os.write(1, data)\n os.write(2, b'noise')"


def test_a_channel_carries_both_ways_at_once(backend: Backend, owner: Owner) -> None:
    channel = backend.spawn(python(ECHO), owner, LIMITS)
    try:
        channel.write(BINARY)
        assert channel.read(100, T) + channel.read(len(BINARY) - 100, T) == BINARY
        channel.write(b"x")
        assert channel.read(1, T) == b"x"
        with pytest.raises(TimeoutError):
            channel.read(1, 0.2)
        assert not channel.was_oom()
    finally:
        channel.close()
    channel.close()
    with pytest.raises(EOFError):
        channel.write(b"x")
    with pytest.raises(EOFError):
        channel.read(1, T)


def test_the_end_of_a_channels_process_is_an_end(backend: Backend, owner: Owner) -> None:
    code = "import os, sys; os.write(1, f'{os.getuid()} {os.getcwd()} {sorted(os.environ)[0]}'.encode()); sys.exit('last words')"
    channel = backend.spawn(python(code), owner, LIMITS)
    try:
        expected = b"65534 /task HOME"
        assert channel.read(len(expected), T) == expected
        with pytest.raises(EOFError, match="last words"):
            channel.read(1, T)
        with pytest.raises(EOFError):
            for _ in range(20):  # the first bytes may still find a pipe
                channel.write(b"x" * MIB)
    finally:
        channel.close()


def test_memory_kills_show_on_a_channel(backend: Backend, owner: Owner) -> None:
    if backend.isolation().limits != "cgroup":
        pytest.skip("no control groups here: nobody counts memory kills")
    channel = backend.spawn(python("x = bytearray(1 << 30)"), owner, LIMITS)
    try:
        with pytest.raises(EOFError):
            channel.read(1, T)
        assert channel.was_oom()
    finally:
        channel.close()


# ------------------------------------------------------------------------------------- choice


def test_an_unknown_backend_is_one_line_with_the_choice() -> None:
    with pytest.raises(SandboxUnavailable, match=r"^sandbox 'podman' is unknown: choose auto, docker or bubblewrap$"):
        open_backend("podman")


def test_isolation_is_said(backend: Backend) -> None:
    assert str(backend.isolation()).startswith(f"{backend.name} (")
    assert backend.isolation().limits == "cgroup" or sys.platform != "linux" or os.geteuid() != 0
