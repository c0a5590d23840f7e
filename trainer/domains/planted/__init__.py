"""Environments with a known hole: to measure what a run sees of exploits, where the truth is known (``--domain planted_NAME``)."""
