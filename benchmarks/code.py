"""The claims about code, measured: ``python -m benchmarks.code [--seeds 5] [--minutes 5]``.

For each seed one run from the human reference, and one whose reward sees the visible tests only: a weak verifier, which
the policy learns to pass without solving more. Sealed scores are hidden tests in both.
"""

from __future__ import annotations

import sys

from benchmarks.cells import Starts, main

DOMAIN = ("--domain", "code")
STARTS: Starts = {"reference": DOMAIN, "weak": (*DOMAIN, "--set", "recipe.reward.tests=visible")}

if __name__ == "__main__":
    sys.exit(main("code", STARTS, "sealed results over seeds, with hidden and with visible tests as the reward"))
