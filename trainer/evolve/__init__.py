"""Diagnostics that evolve: from labelled rollouts of earlier versions to a new metric, checked on those it never saw."""
