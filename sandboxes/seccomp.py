"""The system call filter of a sandbox: a classic BPF program for ``bwrap --seccomp``.

A deny list over namespaces that already hold: it closes what namespaces leave open (kernel surface that only
privileged programs need, state that would outlive a process, ways to reach the process that keeps the sandbox).
Denied calls fail with EPERM, so that programs see an error they understand; calls newer than this list fail with
ENOSYS, as on an older kernel. A foreign architecture (32-bit calls on x86_64) kills: its numbers mean other calls.

Layout of the examined ``struct seccomp_data``: nr, arch (u32 each), instruction pointer (u64), six arguments (u64).
Numbers: Linux's ``asm/unistd_64.h`` (x86_64) and ``asm-generic/unistd.h`` (aarch64).
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from dataclasses import dataclass

from sandboxes.types import SandboxUnavailable

# name: number on x86_64, on aarch64
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes, and the one that keeps the sandbox
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    # state that outlives a process
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "move_mount": (429, 429), "open_tree": (428, 428), "mount_setattr": (442, 442), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "personality": (135, 92),
    # kernel surface with a history of holes, of no use to ordinary programs
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18), "memfd_secret": (447, 447), "modify_ldt": (154, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None), "nfsservctl": (180, 42),
}  # fmt: skip

LAST_KNOWN = 462
"""Calls up to mseal (Linux 6.10) were looked at; 451 to 462 (cachestat, fchmodat2, futex_*, statmount, lsm_*, …) are
harmless in a sandbox."""

NEW_NAMESPACE = 0x7E020000
"""Every CLONE_NEW* flag that clone takes: NS, CGROUP, UTS, IPC, USER, PID, NET."""
AF_UNIX = 1
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: both type into a terminal."""

KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4
X32 = 0x40000000


@dataclass(frozen=True)
class Machine:
    """An architecture: its AUDIT_ARCH, its column in DENIED, and the calls whose arguments matter."""

    audit: int
    column: int
    clone: int
    clone3: int
    ioctl: int
    prlimit64: int
    sockets: tuple[int, int]


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, clone=56, clone3=435, ioctl=16, prlimit64=302, sockets=(41, 53)),
    "aarch64": Machine(0xC00000B7, 1, clone=220, clone3=435, ioctl=29, prlimit64=261, sockets=(198, 199)),
}


def program(machine: str = "") -> bytes:
    """The filter for a machine as ``platform.machine`` names it, by default this one: 8-byte instructions."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise SandboxUnavailable(f"bubblewrap: no system call filter for {machine}, only for {', '.join(MACHINES)}")
    arch = MACHINES[machine]
    denied = sorted(n for numbers in DENIED.values() if (n := numbers[arch.column]) is not None)
    code = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, arch.audit, 1, 0),
        _step(RETURN, KILL_PROCESS),
        _step(LOAD, NUMBER),
        # x32 has this bit set, and numbers of its own; unknown calls are refused with it.
        *_refuse(AT_LEAST, LAST_KNOWN + 1, errno.ENOSYS),
        # Its flags lie behind a pointer, where no filter can look; without it, libraries use clone.
        *_refuse(EQUAL, arch.clone3, errno.ENOSYS),
    ]
    for number in denied:
        code += _refuse(EQUAL, number, errno.EPERM)
    code += _where(arch.clone, 0, _refuse(ANY_BIT, NEW_NAMESPACE, errno.EPERM))
    for number in arch.sockets:
        code += _where(number, 0, [_step(EQUAL, AF_UNIX, 1, 0), _step(RETURN, ERRNO | errno.EPERM)])
    code += _where(arch.ioctl, 1, [s for request in TERMINAL_INPUT for s in _refuse(EQUAL, request, errno.EPERM)])
    # Only of itself: the limits of the process that keeps the sandbox are no business of its programs.
    code += _where(arch.prlimit64, 0, [_step(EQUAL, 0, 1, 0), _step(RETURN, ERRNO | errno.EPERM)])
    code.append(_step(RETURN, ALLOW))
    return b"".join(code)


def descriptor() -> int:
    """The filter as an open file, to be handed on and closed."""
    file = os.memfd_create("seccomp")
    os.write(file, program())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(comparison: int, value: int, error: int) -> list[bytes]:
    return [_step(comparison, value, 0, 1), _step(RETURN, ERRNO | error)]


def _where(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """``checks`` on the low half of an argument of one call; the number is loaded again after them.

    The low half suffices: the kernel itself takes these arguments as 32 bits (flags of clone above it name
    nothing it acts on).
    """
    body = [_step(LOAD, 16 + 8 * argument), *checks, _step(RETURN, ALLOW)]
    return [_step(EQUAL, number, 0, len(body)), *body]
