"""The program's process: what runs in it from the fork to its end. Standard library only, no state of the server's.

Everything used after the program has begun was taken hold of before, and the modules' builtins are copies: a program
that replaces ``print``, ``len`` or parts of ``json`` does so for itself alone.
"""

# A fork must be cheap, so pathlib is not loaded.
# ruff: noqa: PTH102, PTH103, PTH120, PTH123
from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import builtins
import ctypes
import gc
import os
import random
import resource
import sys
import threading
import time
from json.decoder import JSONDecoder
from types import ModuleType
from typing import Any, NoReturn

from sandboxes.guest.preload import fork_hooks
from sandboxes.guest.values import TooLong, encode, one_line

WORK = "/tmp/w"
RESULT_FD = 200
"""Out of the way of programs that count on low numbers, and below the limit of 256 open files."""
HEADER = 9
OK, ERROR, OOM, LIMIT, LOADED, END = range(6)
SLOW_LOAD_S = 0.01
PR_SET_DUMPABLE = 4
"""Whether processes of the same user may look into this one: not into the server; a program is an ordinary process."""
prctl = ctypes.CDLL(None).prctl

Request = tuple[str, str, str, tuple[str, ...], tuple[tuple[str, bytes], ...], float, int, int]
"""source, mode, entry, cases, files, time_s, output_limit, memory_mb: sandboxes.types.Program in this order."""

_scan = JSONDecoder().scan_once  # type: ignore[attr-defined]
_exit, _write, _clock = os._exit, os.write, time.monotonic


def frame(code: int, value: str = "", error: str = "") -> bytes:
    """What a process reports: code (1 byte), lengths of value and error (4 bytes each), both as UTF-8."""
    v, e = value.encode(), error.encode()
    return code.to_bytes(1, "big") + len(v).to_bytes(4, "big") + len(e).to_bytes(4, "big") + v + e


_OOM, _END = frame(OOM, "", "MemoryError"), frame(END)


def send(data: bytes) -> None:
    try:
        while data:
            data = data[_write(RESULT_FD, data) :]
    except OSError:
        return  # the program closed it; what is not told is missing


def live(request: Request, text: str | None, results: int, out: int, err: int) -> NoReturn:
    """All of a forked process's life: its own session, limits, folder and random state, then the program.

    ``text`` is its standard input, None for nothing; the others are descriptors to write to.
    """
    try:
        _settle(request, text, results, out, err)
        if request[1] == "call":
            _run_call(request)
            send(_END)
        else:
            result = _run_main(request[0])
            send(result + _END)
            _exit(0 if result[0] == OK else 1)
        _exit(0)
    except BaseException as error:
        send(_failure(error))
    finally:
        _exit(70)


def _settle(request: Request, text: str | None, results: int, out: int, err: int) -> None:
    _, _, _, cases, files, time_s, _, memory_mb = request
    os.setsid()
    # Not signal.signal: its enumerations touch 40 pages, each of which would be copied.
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    for hooks in fork_hooks:
        os.register_at_fork(**hooks)
    os.dup2(results, RESULT_FD, inheritable=False)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, RESULT_FD)
    # Opened anew: flags and locks of an open file are shared by all who got it by fork.
    os.close(0)
    if text is None:
        os.open("/dev/null", os.O_RDONLY)
    else:
        data = memoryview(text.encode("utf-8", "replace"))
        os.memfd_create("stdin")  # takes the lowest number, 0; a file needs nobody who feeds it
        while data:
            data = data[os.write(0, data) :]
        os.lseek(0, 0, os.SEEK_SET)
    os.set_inheritable(0, True)
    os.mkdir(WORK, 0o755)
    os.chdir(WORK)
    for name, content in files:
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
    bound(resource.RLIMIT_AS, memory_mb << 20)
    bound(resource.RLIMIT_CPU, int(time_s * (len(cases) + 2)) + 2)
    sys.path.insert(0, WORK)
    random.seed(0)
    gc.enable()


def bound(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _failure(error: BaseException) -> bytes:
    if isinstance(error, MemoryError):
        error.__traceback__ = error.__context__ = None  # gives back what the program's frames hold
        return _OOM
    return frame(ERROR, "", one_line(error))


def _namespace(name: str) -> dict[str, Any]:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__["__builtins__"] = builtins  # by default it would be our copy
    return module.__dict__


def _run_call(request: Request) -> None:
    """Load the source, then call the entry per case, each result sent as soon as it is there."""
    source, _, entry, cases, _, _, output_limit, _ = request
    began = _clock()
    space = _namespace("solution")  # not __main__: what stands under that name is for the other modes
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), space)
    except BaseException as error:
        send(_failure(error) * len(cases))
        return
    if _clock() - began > SLOW_LOAD_S:
        send(frame(LOADED))  # the first case has the whole time for itself
    first, *rest = entry.split(".")
    for case in cases:
        try:
            arguments, _ = _scan(case, 0)
            if first not in space:
                raise NameError(f"name '{first}' is not defined")
            target = space[first]
            if rest and isinstance(target, type):
                target = target()
            for name in rest:
                target = getattr(target, name)
            answer = frame(OK, encode(target(*arguments), output_limit))
        except TooLong:
            answer = frame(LIMIT, "", f"a value of more than {output_limit} characters")
        except BaseException as error:
            answer = _failure(error)
        send(answer)


def _flush() -> None:
    sys.stdout.flush()  # whatever the program made of it


def _run_main(source: str) -> bytes:
    """Run the source as a script, with what the end of an interpreter does: threads, atexit, flush."""
    space = _namespace("__main__")
    result = frame(OK)
    shutdown, exits, stdout = threading._shutdown, atexit._run_exitfuncs, sys.stdout  # type: ignore[attr-defined]
    try:
        exec(compile(source, "main.py", "exec", dont_inherit=True), space)
    except SystemExit as end:
        if end.code is not None and not (isinstance(end.code, int) and end.code == 0):
            result = frame(ERROR, "", one_line(end))
    except BaseException as error:
        result = _failure(error)
    for last in (shutdown, exits, _flush, stdout.flush):
        try:
            last()
        except BaseException:  # a closed or replaced stdout, a thread interrupted: the result stands
            continue
    return result
