"""Who owns a sandbox, and whether that process still lives."""

from __future__ import annotations

import os

import psutil

from sandboxes.types import Owner


def this_process(run: str, lifetime_s: float = 7200.0) -> Owner:
    """The calling process as owner."""
    return Owner(run=run, pid=os.getpid(), started=start_time(os.getpid()) or 0, lifetime_s=lifetime_s)


def start_time(pid: int) -> int | None:
    """When a process started, in milliseconds since the epoch; None if there is none (a zombie is none)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time() * 1000)
    except psutil.Error:
        return None


def is_gone(pid: int, started: int) -> bool:
    """Whether that very process has ended; another one with the same number does not count."""
    now = start_time(pid)
    # The boot time behind create_time moves with clock corrections: allow for a second.
    return now is None or abs(now - started) > 1000
