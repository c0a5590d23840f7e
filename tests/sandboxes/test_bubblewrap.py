"""What is bubblewrap's own: channels, the filter on the real kernel, control groups, and who dies with whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sandboxes import cgroups, seccomp
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.owners import this_process
from sandboxes.rootfs import PYTHON
from sandboxes.types import MIB, Limits, Owner, SandboxUnavailable
from tests.backends import backend_or_skip

ROOT = Path(__file__).resolve().parents[2]
SMALL = Limits(memory_mb=96, pids=16, disk_mb=8)


@pytest.fixture(scope="module")
def bubblewrap() -> BubblewrapBackend:
    backend = backend_or_skip("bubblewrap")
    assert isinstance(backend, BubblewrapBackend)
    return backend


@pytest.fixture
def without_cgroups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cgroups, "places", lambda: None)
    yield


def python(code: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", code]


def groups() -> list[Path]:
    places = cgroups.places()
    folders = places.folders.values() if places else []
    return [path for folder in folders for path in folder.iterdir() if cgroups.NAME.fullmatch(path.name)]


def own_groups() -> list[Path]:
    """Those of this process: tests in other processes make groups too."""
    return [path for path in groups() if path.name.startswith(f"evotrainer-{os.getpid()}-")]


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(400):
        if condition():
            return True
        time.sleep(0.025)
    return False


def marked(mark: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if any(mark in word for word in process.info["cmdline"] or ()) and process.info["status"] != "zombie"
    ]


# ------------------------------------------------------------------------------------------ channels


def test_a_process_is_the_first_of_its_sandbox(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    code = "import os; print(os.getpid(), os.getuid(), os.getcwd(), sorted(os.environ), sorted(os.listdir('/proc/self/fd')))"
    with bubblewrap.spawn(python(code), owner, SMALL) as channel:
        expected = b"1 65534 /task ['HOME', 'LANG', 'PATH', 'PWD'] ['0', '1', '2', '3']\n"
        assert channel.read(len(expected), 30.0) == expected


def test_both_may_write_much_at_once(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    code = "import os\nwhile data := os.read(0, 65536): os.write(1, data); os.write(2, b'e' * 1000)"
    data = os.urandom(3 * MIB)
    with bubblewrap.spawn(python(code), owner, SMALL) as channel:
        channel.write(data)
        assert channel.read(len(data), 60.0) == data


def test_an_end_is_said_with_its_last_words(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    code = "import sys; sys.stdout.write('abc'); sys.stdout.flush(); sys.exit('x' * 9000 + ' last words')"
    with bubblewrap.spawn(python(code), owner, SMALL) as channel:
        assert channel.read(3, 30.0) == b"abc"
        with pytest.raises(EOFError, match=r"ended with 1: .*last words$") as caught:
            channel.read(1, 30.0)
        assert len(str(caught.value)) < 3000
        with pytest.raises(EOFError):
            for _ in range(2):
                channel.write(b"x" * MIB)
    with bubblewrap.spawn(["/nowhere"], owner, SMALL) as channel, pytest.raises(EOFError, match="/nowhere"):
        channel.read(1, 30.0)


def test_silence_times_out_and_close_ends_it(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    before = own_groups()
    channel = bubblewrap.spawn(python(f"import time; time.sleep(300) # {mark}"), owner, SMALL)
    with pytest.raises(TimeoutError):
        channel.read(1, 0.3)
    assert marked(mark) and len(own_groups()) >= len(before)
    channel.close()
    channel.close()
    assert eventually(lambda: marked(mark) == [])
    assert set(own_groups()) <= set(before)


def test_a_memory_kill_is_known_even_after_the_end(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    if bubblewrap.isolation().limits != "cgroup":
        pytest.skip("no control groups here: nobody counts memory kills")
    with bubblewrap.spawn(python("b = bytearray(1 << 30)"), owner, SMALL) as channel:
        with pytest.raises(EOFError):
            channel.read(1, 30.0)
        assert channel.was_oom()
    assert channel.was_oom()


# ----------------------------------------------------------------------------------- life and death


def test_a_sandbox_outlives_the_thread_that_made_it(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    made: list[object] = []
    thread = threading.Thread(target=lambda: made.append(bubblewrap.create(owner, SMALL)))
    thread.start()
    thread.join()
    with made[0] as sandbox:  # type: ignore[attr-defined]
        time.sleep(0.2)
        assert sandbox.exec(["true"], timeout_s=30.0).exit_code == 0


def test_a_killed_keeper_is_an_end_not_a_hang(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    with bubblewrap.create(owner, SMALL) as sandbox:
        monitor = psutil.Process(sandbox._channel.process.pid)
        (keeper,) = monitor.children()
        threading.Timer(0.3, keeper.kill).start()
        done = sandbox.exec(["sleep", "60"], timeout_s=120.0)
        assert done.kind == "died" and "ended" in done.detail, done
        assert not sandbox.is_alive()
        assert sandbox.exec(["true"], timeout_s=30.0).kind == "died"


HOST = """
import sys, time
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.owners import this_process
backend = BubblewrapBackend()
sandbox = backend.create(this_process("killed"))
print("ready", flush=True)
sandbox.exec(["python3", "-c", "import os, time; os.fork() or os.setsid(); time.sleep(300)", sys.argv[1]],
             timeout_s=300.0)
"""


def test_what_a_killed_host_leaves_ends_with_it_and_is_swept(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    with bubblewrap.create(owner, SMALL) as ours:
        host = subprocess.Popen([sys.executable, "-c", HOST, mark], cwd=ROOT, stdout=subprocess.PIPE)
        assert host.stdout and host.stdout.readline() == b"ready\n"
        assert eventually(lambda: len(marked(mark)) == 3)
        theirs = {path.name for path in groups() if path.name.startswith(f"evotrainer-{host.pid}-")}
        host.kill()
        host.wait()
        host.stdout.close()
        assert eventually(lambda: marked(mark) == [])
        assert set(bubblewrap.reap()) >= theirs
        assert not [path for path in groups() if path.name in theirs]
        assert ours.exec(["true"], timeout_s=30.0).exit_code == 0


def test_a_lifetime_that_is_over_ends_a_sandbox(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    with bubblewrap.create(replace(owner, lifetime_s=0.2), SMALL) as short, bubblewrap.create(owner, SMALL) as long:
        time.sleep(0.3)
        assert bubblewrap.reap()
        assert short.exec(["true"], timeout_s=30.0).kind == "died"
        assert long.exec(["true"], timeout_s=30.0).exit_code == 0


def test_a_sandbox_of_a_dead_owner_ends(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with bubblewrap.create(replace(owner, pid=dead.pid), SMALL) as orphan:
        assert any(name.startswith(f"evotrainer-{dead.pid}-") for name in bubblewrap.reap())
        assert not orphan.is_alive()


# -------------------------------------------------------------------------------------------- limits


def test_without_control_groups_limits_hold_for_each_process(
    without_cgroups: None, bubblewrap: BubblewrapBackend, owner: Owner
) -> None:
    fork = "import os, time\nn = 0\ntry:\n while n < 500:\n  n += os.fork() > 0 or time.sleep(60)\nexcept OSError: print(n)"
    with bubblewrap.create(owner, SMALL) as sandbox:
        bomb = sandbox.exec(["python3", "-c", "b = bytearray(1 << 30)"], timeout_s=30.0)
        assert bomb.exit_code == 1 and b"MemoryError" in bomb.stderr, bomb
        forks = sandbox.exec(["python3", "-c", fork], timeout_s=30.0)
        assert 0 < int(forks.stdout) <= SMALL.pids + 2, forks
        with pytest.raises(OSError):
            sandbox.write("/tmp/x", bytes(9 * MIB))
    with bubblewrap.create(this_process("expired", lifetime_s=0.0), SMALL) as sandbox:
        assert bubblewrap.reap() and not sandbox.is_alive()


V1 = ("5:pids:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n",
      "30 1 0:1 /docker/ab /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
      "31 1 0:2 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "32 1 0:3 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "33 1 0:4 / / rw shared:1 - ext4 /dev/vda rw\n")  # fmt: skip


def test_places_of_v1_controllers_are_relative_to_what_is_mounted() -> None:
    found = cgroups.find_places(*V1)
    assert found and not found.unified
    assert found.folders == {"memory": Path("/sys/fs/cgroup/memory"), "pids": Path("/sys/fs/cgroup/pids")}


def test_place_in_v2_is_the_nearest_that_hands_controllers_down(tmp_path: Path) -> None:
    ours = tmp_path / "user.slice/user-0.slice/session-2.scope"
    ours.mkdir(parents=True)
    for folder, handed in ((ours, ""), (ours.parent, "cpu memory pids"), (tmp_path, "memory pids")):
        (folder / "cgroup.subtree_control").write_text(handed)
    mount = f"30 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    own = "0::/user.slice/user-0.slice/session-2.scope\n"
    assert cgroups.find_places(own, mount) == cgroups.Places({"unified": ours.parent})
    (ours.parent / "cgroup.subtree_control").write_text("cpu")
    assert cgroups.find_places(own, mount) == cgroups.Places({"unified": tmp_path})
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    assert cgroups.find_places(own, mount) is None


# -------------------------------------------------------------------------------------------- filter


def test_the_filter_refuses_what_it_lists_on_this_kernel(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    column = seccomp.MACHINES[os.uname().machine].column
    numbers = {name: numbers[column] for name, numbers in seccomp.DENIED.items() if numbers[column] is not None}
    clone3 = seccomp.MACHINES[os.uname().machine].clone3
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def error(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()) if result == -1 else "ok"
print({{name: e for name, n in {numbers!r}.items() if (e := error(n, -1, -1, -1, -1, -1, -1)) != "EPERM"}})
print(error({clone3}, 0, 0), error({seccomp.LAST_KNOWN + 1}, 0), error(999999, 0))
import fcntl, os, resource, socket, struct, termios
def refused(action):
    try:
        action()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "ok"
a, b = os.openpty()
print([refused(lambda: fcntl.ioctl(b, request, b"x")) for request in (0x5412, 0x541C)], refused(lambda: termios.tcgetattr(b)))
print([refused(lambda: socket.socket(f)) for f in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 38)])
print(refused(lambda: resource.prlimit(0, resource.RLIMIT_CPU)), refused(lambda: resource.prlimit(1, resource.RLIMIT_CPU)))
"""
    with bubblewrap.create(owner, SMALL) as sandbox:
        done = sandbox.exec(["python3", "-c", code], timeout_s=30.0)
    assert done.stdout.decode().splitlines() == [
        "{}",
        "ENOSYS ENOSYS ENOSYS",
        "['EPERM', 'EPERM'] ok",
        "['ok', 'EPERM', 'EPERM', 'EPERM', 'EPERM']",
        "ok EPERM",
    ], done


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the second set of calls is x86's")
def test_calls_of_another_architecture_kill(bubblewrap: BubblewrapBackend, owner: Owner) -> None:
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("went through")
"""
    with bubblewrap.create(owner, SMALL) as sandbox:
        done = sandbox.exec(["python3", "-c", code], timeout_s=30.0)
        assert (done.exit_code, done.stdout) == (128 + signal.SIGSYS, b""), done


def test_every_known_machine_has_a_filter_and_no_other() -> None:
    for machine in seccomp.MACHINES:
        program = seccomp.program(machine)
        assert len(program) % 8 == 0 and 100 < len(program) // 8 < 4096
    assert seccomp.program("x86_64") != seccomp.program("aarch64")
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        seccomp.program("riscv64")
