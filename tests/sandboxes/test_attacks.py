"""Attacks on the border: what a hostile program tries to see, reach or change outside of its sandbox.

Every attack has the same verdict on every backend, except for these, which stay inside on both:

| attempt inside                     | bubblewrap            | docker                                         |
|------------------------------------|-----------------------|------------------------------------------------|
| an internet socket, even loopback  | refused (EPERM)       | allowed, in a network of its own without links |
| System V memory, semaphores, queues| refused (EPERM)       | allowed, gone with the container               |
| io_uring                           | refused (EPERM)       | as the engine's own filter says                |
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.types import Backend, Owner, SandboxFailure
from tests.sandboxes.attacks import Victim, victim

PROJECT = Path(__file__).resolve().parents[2]
REFUSED_BY = {"inet": {"bubblewrap"}, "sysv": {"bubblewrap"}, "io_uring": {"bubblewrap"}}
"""The table above: attempts that only these backends refuse."""


@pytest.fixture
def under_attack(backend: Backend, owner: Owner) -> Iterator[Victim]:
    with victim(backend, owner) as attacked:
        yield attacked


# ------------------------------------------------------------------------------------------- network


def test_network_is_out_of_reach(under_attack: Victim) -> None:
    name = f"\0evotrainer-{os.getpid()}-{time.monotonic_ns()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = tcp.getsockname()[1]
        gains = under_attack.gains(f"""
def ours():
    s = socket.socket(socket.AF_UNIX)
    s.bind("\\0inside")
    s.listen()
    c = socket.socket(socket.AF_UNIX)
    c.connect("\\0inside")
    return "abstract"
attempt("ours", ours)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", {port}), 2))
attempt("gateway", lambda: socket.create_connection(("172.17.0.1", {port}), 2))
attempt("internet", lambda: socket.create_connection(("1.1.1.1", 53), 2))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)))
attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect({name!r}))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).connect((2, {port})))
attempt("engine", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
""")
        assert gains == [["ours", "'abstract'"]]
        for listener in (tcp, abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_server_inside_is_not_reachable(under_attack: Victim) -> None:
    done = under_attack.run("""
try:
    server = socket.create_server(("0.0.0.0", 18457))
except PermissionError:
    print("refused")
else:
    server.settimeout(1.0)
    print("listening", flush=True)
    try:
        server.accept()
        print("reached")
    except TimeoutError:
        pass
""")
    expected = b"refused\n" if under_attack.backend in REFUSED_BY["inet"] else b"listening\n"
    assert (done.kind, done.exit_code, done.stdout) == ("exit", 0, expected), done


# --------------------------------------------------------------------------------------------- files


def test_files_of_the_host_are_not_there(under_attack: Victim, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    gains = under_attack.gains(f"""
for path in ("/etc/shadow", "/etc/hostname", {str(secret)!r}, {str(PROJECT / "AGENTS.md")!r}, "/proc/kcore", "/dev/mem",
             "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/loop0", "/dev/fuse", "/proc/1/mem", "/proc/kallsyms/x"):
    attempt(path, lambda: open(path, "rb").read(1))
for path in ("/root", {str(PROJECT)!r}, {str(tmp_path)!r}, "/var/cache", "/var/lib/docker", "/oldroot",
             "/proc/1/root", "/proc/1/cwd", "/proc/1/fd", "/proc/1/map_files"):
    attempt(path, lambda: os.listdir(path))
attempt("/home", lambda: os.listdir("/home")[0])
""")
    assert [name for name, _ in gains if name != "/etc/hostname"] == []
    # A container has a name of its own, and a file that says it.
    assert all(socket.gethostname() not in result for name, result in gains)


def test_the_system_is_not_writable(under_attack: Victim) -> None:
    gains = under_attack.gains("""
for path in ("/x", "/usr/x", "/usr/bin/python3", "/etc/passwd", "/etc/x", "/bin/sh", "/dev/x", "/dev/core", "/proc/x",
             "/usr/local/lib/python3.11/json/__init__.py", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern",
             "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/ns_last_pid", "/proc/sysrq-trigger",
             "/proc/1/oom_score_adj", "/proc/1/comm", "/proc/1/uid_map", "/proc/self/uid_map", "/sys/x",
             "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup", "/dev/mqueue/x", "/sys/fs/cgroup/x",
             "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
    # r+ for what exists, w for what does not; a written nothing changes nothing if it should succeed
    attempt(path, lambda: os.write(os.open(path, os.O_RDWR | (0 if os.path.exists(path) else os.O_CREAT)), b"0"))
for path in ("/usr/x", "/x", "/etc/x", "/dev/x"):
    attempt("mkdir " + path, lambda: os.mkdir(path))
attempt("unlink", lambda: os.unlink("/usr/bin/sh"))
attempt("rename", lambda: os.rename("/usr/bin/ls", "/usr/bin/lss"))
attempt("chmod", lambda: os.chmod("/usr/bin", 0o777))
for kind in (0o020000, 0o060000):
    attempt("mknod", lambda: os.mknod("/task/device", kind | 0o666, os.makedev(1, 1)))
""")
    assert gains == []


def test_nothing_of_ours_shows_in_proc(backend: Backend, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTRAINER_SECRET", "sesame-4711")
    with victim(backend, owner) as attacked:
        done = attacked.run(f"""
secret, project = "sesame" + "-4711", {str(PROJECT)[:2]!r} + {str(PROJECT)[2:]!r}
seen = []
for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self", "thread-self"]:
    for name in ("environ", "cmdline", "maps", "status", "mountinfo", "cgroup", "comm"):
        try:
            text = open(f"/proc/{{pid}}/{{name}}", errors="replace").read()
        except OSError:
            continue
        seen.append(name)
        if secret in text or (project in text and not text.startswith("python3")):
            print("LEAK", pid, name, text)
try:
    print("ENVIRON OF 1", open("/proc/1/environ").read())
except PermissionError:
    pass
print(len(seen) > 5, sorted(set(os.environ) - {{"ATTACK", "LC_CTYPE"}}))
""")
    assert done.stdout == b"True ['HOME', 'LANG', 'PATH']\n", done


# ---------------------------------------------------------------------------------------- privileges


def test_no_privilege_can_be_gained(under_attack: Victim) -> None:
    gains = under_attack.gains("""
attempt("setuid", lambda: os.setuid(0))
attempt("setgid", lambda: os.setgid(0))
attempt("setgroups", lambda: os.setgroups([0]))
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
    attempt(f"unshare {flag:#x}", lambda: call("unshare", flag))
attempt("mount", lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, None))
attempt("umount", lambda: call("umount2", b"/proc", 2))
attempt("remount", lambda: call("mount", None, b"/", None, 32 | 4096, None))
attempt("chroot", lambda: os.chroot("/tmp"))
for pid in (1, os.getppid()):
    if pid:
        attempt(f"ptrace {pid}", lambda: call("ptrace", 16, pid, None, None))
        attempt(f"seize {pid}", lambda: call("ptrace", 0x4206, pid, None, None))
def peek():
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("PN", ctypes.addressof(buffer), 8)
    call("process_vm_readv", 1, vector, ctypes.c_ulong(1), struct.pack("PN", 0x400000, 8), ctypes.c_ulong(1), 0)
attempt("process_vm_readv", peek)
def take():
    process = os.pidfd_open(1)
    return [system(438, process, n, 0) for n in range(3)]
attempt("pidfd_getfd", take)
attempt("hostname", lambda: socket.sethostname("x"))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() + 1))
attempt("reboot", lambda: call("reboot", 0))
attempt("swapon", lambda: call("swapon", b"/task/swap", 0))
attempt("syslog", lambda: call("klogctl", 3, ctypes.create_string_buffer(64), 64))
attempt("iopl", lambda: call("iopl", 3))
attempt("nice", lambda: os.nice(-5))
attempt("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
""")
    assert gains == []


def test_kernel_features_that_outlive_or_endanger_are_refused(under_attack: Victim) -> None:
    gains = under_attack.gains("""
x86 = os.uname().machine == "x86_64"
numbers = {"add_key": (248, 217), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
           "userfaultfd": (323, 282), "kexec_load": (246, 104), "init_module": (175, 105), "io_uring": (425, 425),
           "open_by_handle_at": (304, 265), "sysv": (29, 194), "quotactl": (179, 60), "fsopen": (430, 430)}
number = {name: pair[0 if x86 else 1] for name, pair in numbers.items()}
zeros = ctypes.create_string_buffer(256)
attempt("add_key", lambda: system(number["add_key"], b"user", b"left", b"x", 1, -3))
attempt("keyctl", lambda: system(number["keyctl"], 0, -3, 1))
attempt("bpf", lambda: system(number["bpf"], 0, zeros, 72))
attempt("perf_event_open", lambda: system(number["perf_event_open"], zeros, 0, -1, -1, 0))
attempt("userfaultfd", lambda: system(number["userfaultfd"], 0))
attempt("kexec_load", lambda: system(number["kexec_load"], 0, 0, 0, 0))
attempt("init_module", lambda: system(number["init_module"], zeros, 0, b""))
attempt("fsopen", lambda: system(number["fsopen"], b"tmpfs", 0))
attempt("io_uring", lambda: system(number["io_uring"], 2, zeros))
attempt("sysv", lambda: system(number["sysv"], 0x4711, 4096, 0o1600))
""")
    allowed = {name for name, refusing in REFUSED_BY.items() if under_attack.backend not in refusing}
    assert {name for name, _ in gains} <= allowed, gains


def test_there_is_no_setuid_program_and_none_can_be_made(under_attack: Victim) -> None:
    done = under_attack.run("""
import shutil, stat
for parent, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if parent != "/" or f not in ("proc", "sys")]
    for name in files:
        status = os.lstat(os.path.join(parent, name))
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000:
            print("SETUID", parent, name)
shutil.copy("/usr/bin/id", "/task/id")
os.chmod("/task/id", 0o6755)
print(subprocess.run(["/task/id", "-u"], capture_output=True, text=True).stdout.strip(), os.getuid())
""")
    assert done.stdout == b"65534 65534\n", done


def test_the_keeper_cannot_be_killed_or_crippled(under_attack: Victim) -> None:
    done = under_attack.run("""
import resource
def quietly(action):
    try:
        action()
    except OSError:
        pass
for number in range(1, 65):
    quietly(lambda: os.kill(1, number))
for limit in ("NOFILE", "CPU", "AS", "FSIZE", "NPROC", "STACK"):
    quietly(lambda: resource.prlimit(1, getattr(resource, "RLIMIT_" + limit), (0, 0)))
quietly(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
quietly(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
quietly(lambda: os.kill(-1, signal.SIGKILL))
print("tried")
""")
    assert (done.kind, done.stdout) == ("exit", b"tried\n"), done
    assert under_attack.sandbox.is_alive()


# --------------------------------------------------------------------- copies across the border


def test_links_are_followed_inside_only(under_attack: Victim, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    sandbox = under_attack.sandbox
    done = under_attack.run(f"""
os.symlink({str(secret)!r}, "/task/secret")
os.symlink("/etc/passwd", "/task/passwd")
os.symlink("loop", "/task/loop")
os.mkfifo("/task/fifo")
os.symlink("/dev/zero", "/task/zero")
os.symlink("/proc/1/environ", "/task/environ")
os.symlink("/etc", "/task/etc")
""")
    assert done.exit_code == 0, done
    assert sandbox.read("/task/passwd").startswith(b"root:x:0:0:")
    assert sandbox.read("/task/passwd") != Path("/etc/passwd").read_bytes()
    for path in ("secret", "loop", "fifo", "zero", "environ", "nothing", ".", "/dev/stdin", "/dev/tty"):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
    for path in ("passwd", "etc/new", "secret", "fifo", "loop", "zero", "/usr/new", "."):
        with pytest.raises(OSError):
            sandbox.write(path, b"hostile")
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(
    "make",
    [
        'os.symlink("/etc/passwd", "/task/d/x")',
        'os.symlink("../../etc/passwd", "/task/d/x")',
        'os.symlink(".", "/task/d/a"); os.symlink("a/../../x", "/task/d/b")',
        'os.symlink("sub", "/task/d/a"); os.mkdir("/task/d/sub"); os.symlink("../..", "/task/d/sub/b")',
        'os.mkfifo("/task/d/x")',
    ],
)
def test_a_download_that_leads_out_is_refused(under_attack: Victim, tmp_path: Path, make: str) -> None:
    done = under_attack.run(f'os.mkdir("/task/d"); open("/task/d/file", "w").write("y"); {make}')
    assert done.exit_code == 0, done
    with pytest.raises(SandboxFailure):
        under_attack.sandbox.download("/task/d", tmp_path / "copy")
    assert [*tmp_path.iterdir()] == []


def test_a_download_of_honest_files_works(under_attack: Victim, tmp_path: Path) -> None:
    done = under_attack.run("""
os.makedirs("/task/d/sub")
open("/task/d/sub/f", "wb").write(bytes(range(256)))
os.symlink("../sub/f", "/task/d/sub/link")
os.chmod("/task/d/sub/f", 0o6755)
""")
    assert done.exit_code == 0, done
    under_attack.sandbox.download("/task/d", tmp_path / "copy")
    assert (tmp_path / "copy/sub/link").read_bytes() == bytes(range(256))
    assert (tmp_path / "copy/sub/f").stat().st_mode & 0o7777 == 0o755
    with pytest.raises(FileExistsError):
        under_attack.sandbox.download("/task/d", tmp_path / "copy")
