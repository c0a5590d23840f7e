"""graph.run some of whose jobs stop for good as soon as they start: ``PART[,PART…] -- arguments of graph.run``.

A job hangs whose log's path ends with a PART. Jobs get one second beyond their deadline instead of thirty.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any

from graph import run
from trainer.embedded import launcher
from trainer.embedded.process import Child


class Hanging(Child):
    parts: tuple[str, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if str(self.log).endswith(self.parts):
            os.kill(self.pid, signal.SIGSTOP)
            self.log.with_name(f".result.json.{self.pid}.partial").touch()  # as if it hung while it wrote


def main() -> int:
    parts, dashes, *arguments = sys.argv[1:]
    assert dashes == "--"
    Hanging.parts = tuple(parts.split(","))
    vars(launcher)["Child"] = Hanging
    vars(launcher)["EmbeddedTrainer"] = functools.partial(launcher.EmbeddedTrainer, grace_s=1.0)
    return run.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
