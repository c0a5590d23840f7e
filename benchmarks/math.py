"""The claims about math, measured: ``python -m benchmarks.math [--seeds 5] [--minutes 5]``.

For each seed one run from the human reference and one from a damaged start (learning rate 2e-3).
"""

from __future__ import annotations

import sys

from benchmarks.cells import DAMAGED, Starts, main

STARTS: Starts = {"reference": (), "damaged": DAMAGED}

if __name__ == "__main__":
    sys.exit(main("math", STARTS, "sealed results over seeds, from the human reference and from a damaged start"))
