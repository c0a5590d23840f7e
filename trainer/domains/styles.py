"""Mixes of demonstration styles."""

from __future__ import annotations

from collections.abc import Mapping


def mixed(styles: Mapping[str, float], style: str, share: float) -> Mapping[str, float]:
    """Shares of all styles with ``share`` (0 to 1) for ``style``; the others keep their proportions among each other. A
    share of 0 stands for the mix as it is."""
    if not share:
        return styles
    rest = sum(weight for name, weight in styles.items() if name != style)
    return {name: share if name == style else (1 - share) * weight / rest for name, weight in styles.items()}
