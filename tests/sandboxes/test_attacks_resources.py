"""Attacks on resources and on order: bombs, floods, what stays behind, signals, streams.

The verdict is the same on every backend. What may differ: whether the sandbox survives a memory bomb made of files
(it says so), and how a backend divides the disk among the writable places (the sum is the limit).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxes.types import MIB, Backend, Limits, Owner, SandboxFailure
from tests.sandboxes.attacks import LIMITS, Victim, victim


@pytest.fixture
def under_attack(backend: Backend, owner: Owner) -> Iterator[Victim]:
    with victim(backend, owner) as attacked:
        yield attacked


# --------------------------------------------------------------------------------------------- bombs


def test_fork_bomb_is_bounded_and_swept(under_attack: Victim) -> None:
    done = under_attack.run(
        """
count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError as error:
        break
    count += 1
print(count, flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        timeout_s=3.0,
    )
    assert done.kind == "timeout", done
    assert 0 < int(done.stdout.split()[0]) < LIMITS.pids


def test_threads_are_bounded(under_attack: Victim) -> None:
    done = under_attack.run("""
threading.stack_size(65536)
count = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError:
    print(count, flush=True)
os._exit(0)
""")
    assert (done.kind, done.exit_code) == ("exit", 0), done
    assert 0 < int(done.stdout) < LIMITS.pids


@pytest.mark.parametrize(
    "bomb",
    [
        "blocks = []\nwhile True: blocks.append([0] * 100_000)",
        "maps = []\nwhile True:\n m = mmap.mmap(-1, 1 << 24); maps.append(m)\n for i in range(0, 1 << 24, 4096): m[i] = 1",
        "open('/proc/self/oom_score_adj', 'w').write('0')\nb'x' * (1 << 34)",
        "files = [os.memfd_create('x') for _ in range(1)]\nwhile True: os.write(files[0], b'x' * (1 << 20))",
    ],
    ids=["list", "mmap", "one-large", "memfd"],
)
def test_memory_bomb(under_attack: Victim, bomb: str) -> None:
    done = under_attack.run(bomb)
    # A refused allocation is an error of the program, a granted one that it then uses ends it.
    if done.kind == "exit":
        assert b"MemoryError" in done.stderr, done
    else:
        assert (done.kind, done.exit_code) == ("oom", None), done


def test_memory_bomb_of_many_processes(under_attack: Victim) -> None:
    done = under_attack.run("""
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(40 << 20)
        time.sleep(60)
time.sleep(3)
sys.exit(3)
""")
    assert done.kind == "oom", done


def test_memory_bomb_of_files_ends_in_a_said_outcome(backend: Backend, owner: Owner) -> None:
    with victim(backend, owner, Limits(memory_mb=48, pids=16, disk_mb=1024)) as attacked:
        done = attacked.run("""
with open("/task/x", "wb", buffering=0) as file:
    for _ in range(1000):
        file.write(b"x" * (1 << 20))
""")
        assert done.kind == "oom", done
        if attacked.sandbox.is_alive():  # its files still hold all memory: leave room for the look afterwards
            attacked.sandbox.exec(["rm", "/task/x"], timeout_s=20.0)


def test_disk_is_bounded_over_all_writable_places(under_attack: Victim) -> None:
    done = under_attack.run("""
total = 0
for parent, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if parent != "/" or f not in ("proc", "sys", "usr")]
    try:
        with open(os.path.join(parent, "filler"), "wb", buffering=0) as file:
            while True:
                total += file.write(b"x" * 65536)
    except OSError as error:
        pass
print(total)
""")
    assert (done.kind, done.exit_code) == ("exit", 0), done
    assert LIMITS.disk_mb * MIB * 3 // 4 <= int(done.stdout) <= LIMITS.disk_mb * MIB
    with pytest.raises(OSError):
        under_attack.sandbox.write("/task/more", b"x" * MIB)
    assert under_attack.sandbox.exec(["sh", "-c", "rm -f /task/filler /tmp/filler"], timeout_s=20.0).exit_code == 0


def test_files_are_bounded_over_all_writable_places(under_attack: Victim) -> None:
    done = under_attack.run("""
total = 0
for parent in ("/task", "/tmp", "/dev/shm", "/dev", "/run", "/var/tmp"):
    try:
        while True:
            os.close(os.open(f"{parent}/{total}", os.O_CREAT | os.O_WRONLY))
            total += 1
    except OSError:
        pass
print(total)
""")
    assert (done.kind, done.exit_code) == ("exit", 0), done
    assert LIMITS.inodes * 3 // 4 <= int(done.stdout) <= LIMITS.inodes
    done = under_attack.sandbox.exec(["sh", "-c", "rm -f /task/* /tmp/*"], timeout_s=20.0)
    assert done.exit_code == 0, done


def test_files_that_lie_about_their_size_or_depth(under_attack: Victim) -> None:
    done = under_attack.run("""
with open("/task/sparse", "wb") as file:
    file.truncate(1 << 40)
open("/task/unreadable", "w").write("x")
os.chmod("/task/unreadable", 0)
for _ in range(500):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
""")
    assert done.exit_code == 0, done
    with pytest.raises(SandboxFailure):
        under_attack.sandbox.read("/task/sparse")
    try:
        assert len(under_attack.sandbox.snapshot()) < 64 * MIB
    except SandboxFailure as error:
        assert "\n" not in str(error)


# --------------------------------------------------------------------------------- what stays behind


def test_a_daemon_does_not_outlive_its_command(under_attack: Victim) -> None:
    done = under_attack.run("""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:  # holding the command's output open
            open("/task/beat", "a").write("x")
            time.sleep(0.01)
    os._exit(0)
while not os.path.exists("/task/beat"):
    time.sleep(0.01)
print("left")
""")
    assert (done.kind, done.exit_code, done.stdout) == ("exit", 0, b"left\n"), done
    assert under_attack.survivors() == []
    beats = under_attack.sandbox.read("/task/beat")
    under_attack.sandbox.exec(["sleep", "0.2"], timeout_s=20.0)
    assert under_attack.sandbox.read("/task/beat") == beats


def test_a_timeout_ends_everything(under_attack: Victim) -> None:
    done = under_attack.run(
        """
subprocess.Popen(["sleep", "60"], start_new_session=True)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("started", flush=True)
while True:
    pass
""",
        timeout_s=1.5,
    )
    assert (done.kind, done.exit_code, done.stdout) == ("timeout", None, b"started\n"), done
    assert under_attack.survivors() == []


def test_only_files_stay(under_attack: Victim) -> None:
    script = """
import fcntl
names = {}
def leave(name, action):
    try:
        names[name] = action()
    except (OSError, PermissionError):
        names[name] = "refused"
def bind():
    global server
    server = socket.socket(socket.AF_UNIX)
    server.bind("\\0left")
    return "first"
def lock():
    global file
    file = open("/task/lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "first"
leave("abstract", bind)
leave("lock", lock)
leave("nice", lambda: os.nice(0))
print(json.dumps(names))
os.nice(3)
if os.fork() == 0:
    time.sleep(60)
"""
    first, second = under_attack.run(script), under_attack.run(script)
    assert first.stdout == second.stdout and b'"abstract": "first"' in first.stdout, (first, second)
    assert b'"lock": "first"' in first.stdout


# ------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "timeout", None),
        ("os.kill(0, signal.SIGKILL); time.sleep(60)", "exit", 137),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "exit", 139),
        ("os.getppid() > 1 and os.kill(os.getppid(), signal.SIGKILL)", "exit", 0),
        ("attempt('kill', lambda: os.kill(-1, signal.SIGTERM)); sys.exit(5)", "exit", 5),
        ("os._exit(137)", "exit", 137),
    ],
    ids=["stop", "kill-group", "crash", "kill-parent", "kill-all", "pretend-killed"],
)
def test_signal_games(under_attack: Victim, script: str, kind: str, code: int | None) -> None:
    done = under_attack.run(script, timeout_s=2.0 if kind == "timeout" else 20.0)
    assert (done.kind, done.exit_code) == (kind, code), done


# ------------------------------------------------------------------------------------------- streams


def test_a_flood_of_output_is_cut_and_ends_the_command(under_attack: Victim) -> None:
    script = """
while True:
    os.write(1, bytes(range(256)) * 64)
    os.write(2, bytes(range(256)) * 64)
"""
    done = under_attack.run(script, output_limit=300_000)
    assert (done.kind, done.exit_code, done.truncated) == ("output_limit", None, True), done
    assert len(done.stdout) + len(done.stderr) == 300_000
    for stream in (done.stdout, done.stderr):
        assert stream == (bytes(range(256)) * 1200)[: len(stream)]


def test_output_at_its_limit_is_whole_and_one_byte_more_is_not(under_attack: Victim) -> None:
    whole = under_attack.run("os.write(1, b'a' * 999); os.write(2, b'b')", output_limit=1000)
    assert (whole.kind, whole.exit_code, len(whole.stdout), whole.truncated) == ("exit", 0, 999, False), whole
    over = under_attack.run("os.write(1, b'a' * 1001)", output_limit=1000)
    assert (over.kind, len(over.stdout), over.truncated) == ("output_limit", 1000, True), over


def test_closed_streams_do_not_end_a_command(under_attack: Victim) -> None:
    done = under_attack.run("""
for descriptor in range(64):
    try:
        os.close(descriptor)
    except OSError:
        pass
time.sleep(0.3)
open("/task/reached", "w").write("yes")
os._exit(7)
""")
    assert (done.kind, done.exit_code, done.stdout) == ("exit", 7, b""), done
    assert under_attack.sandbox.read("/task/reached") == b"yes"


def test_output_hidden_in_a_socket_cycle_does_not_hold_the_command(under_attack: Victim) -> None:
    done = under_attack.run("""
import array
a, b = socket.socketpair()
rights = array.array("i", [1, 2, a.fileno(), b.fileno()])
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
b.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
print("hidden")
""")
    assert (done.kind, done.exit_code, done.stdout) == ("exit", 0, b"hidden\n"), done


def test_input_that_is_never_read(under_attack: Victim) -> None:
    flood = bytes(4 * MIB)
    ignored = under_attack.run("print('done')", stdin=flood)
    assert (ignored.kind, ignored.exit_code, ignored.stdout) == ("exit", 0, b"done\n"), ignored
    waited = under_attack.run("time.sleep(60)", stdin=flood, timeout_s=1.5)
    assert waited.kind == "timeout", waited
    closed = under_attack.run("os.close(0); time.sleep(0.3); sys.exit(4)", stdin=flood)
    assert (closed.kind, closed.exit_code) == ("exit", 4), closed
    echoed = under_attack.run("os.write(1, sys.stdin.buffer.read())", stdin=flood, output_limit=8 * MIB)
    assert (echoed.kind, echoed.stdout == flood) == ("exit", True), echoed.kind


def test_arguments_no_system_takes_are_the_commands_fault(under_attack: Victim) -> None:
    for argv in (["a\0b"], ["/nowhere"], ["/etc/passwd"], ["/"], ["echo", "x" * 3 * MIB], [""]):
        done = under_attack.sandbox.exec(argv, timeout_s=20.0)
        assert done.kind == "exit" and done.exit_code not in (0, None), (argv[0], done.kind, done.exit_code)
    odd = under_attack.sandbox.exec(["printf", "%s", "ä\udcff\n'\"$(id)"], timeout_s=20.0)
    assert odd.stdout == "ä".encode() + b"\xff\n'\"$(id)", odd


def test_commands_are_not_slowed_by_what_came_before(under_attack: Victim) -> None:
    """A kept sandbox is worth as much after fifty commands as at first."""
    for number in range(50):
        done = under_attack.sandbox.exec(["sh", "-c", f"echo {number}; sleep 60 &"], timeout_s=20.0)
        assert (done.kind, done.stdout) == ("exit", f"{number}\n".encode()), done
    assert under_attack.survivors() == []


def test_the_dead_say_so(under_attack: Victim) -> None:
    under_attack.sandbox.close()
    assert under_attack.sandbox.exec(["sleep", "60"], timeout_s=120.0).kind == "died"
    with pytest.raises(SandboxFailure):
        under_attack.sandbox.read("/etc/passwd")
