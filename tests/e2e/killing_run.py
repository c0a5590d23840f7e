"""graph.run that is killed with SIGKILL at one node: ``NODE WHEN -- arguments of graph.run``.

WHEN is ``after`` its last line (all effects made, nothing checkpointed) or ``during`` (half a second
after its start).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from graph import build, run


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(node: build.Node, when: str) -> build.Node:
    def wrapped(state: Any, runtime: Any) -> Any:
        if when == "during":
            threading.Timer(0.5, kill).start()
        result = node(state, runtime)
        kill()
        return result

    return wrapped


def main() -> int:
    name, when, dashes, *arguments = sys.argv[1:]
    assert dashes == "--"
    table: dict[str, build.Node] = build.NODES  # type: ignore[assignment]
    table[name] = deadly(table[name], when)
    return run.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
