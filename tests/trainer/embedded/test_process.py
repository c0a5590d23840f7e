"""A child is started once, whatever happens to the server that forks it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil

from trainer.embedded.process import Child


def note(file: Path) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(f"{os.getpid()}\n")


def fork_server() -> psutil.Process:
    children = psutil.Process().children()
    return next(p for p in children if "forkserver" in " ".join(p.cmdline()))


def test_a_fork_server_that_is_killed_while_it_serves_is_replaced(tmp_path: Path) -> None:
    first = Child(note, (tmp_path / "warm",), tmp_path / "warm.log")
    while first.exit_code is None:
        time.sleep(0.01)
    server = fork_server()
    server.suspend()  # it takes the request and does not answer
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(Child(note, (tmp_path / "out",), tmp_path / "log")))
    thread.start()
    time.sleep(0.3)  # were it too short, the server would be found dead and the same must hold
    server.kill()
    thread.join()
    child = started[0]
    while child.exit_code is None:
        time.sleep(0.01)
    assert child.exit_code == 0
    assert (tmp_path / "out").read_text().split() == [str(child.pid)]
