"""The generators and scorers of reasoning_gym, without importing the whole package."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from trainer.types import InputError

# Family to (module below reasoning_gym, dataset class, config class).
_FAMILIES: Mapping[str, tuple[str, str, str]] = {
    "chain_sum": ("arithmetic.chain_sum", "ChainSumDataset", "ChainSumConfig"),
    "basic_arithmetic": ("arithmetic.basic_arithmetic", "BasicArithmeticDataset", "BasicArithmeticDatasetConfig"),
    "complex_arithmetic": ("algebra.complex_arithmetic", "ComplexArithmeticDataset", "ComplexArithmeticConfig"),
    "leg_counting": ("arithmetic.leg_counting", "LegCountingDataset", "LegCountingConfig"),
}
_PACKAGES = ("reasoning_gym", "reasoning_gym.arithmetic", "reasoning_gym.algebra", "reasoning_gym.coaching")
# What the generators import from the coaching package, and where it is defined.
_COACHING: Mapping[str, str] = {
    "BaseCurriculum": "base_curriculum",
    "RangeAttributeDefinition": "attributes",
    "ScalarAttributeDefinition": "attributes",
}


class Generator(Protocol):
    """A ``reasoning_gym`` dataset: problem ``i`` depends on ``i`` and the config only."""

    def __getitem__(self, i: int) -> dict[str, Any]: ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


def generator(family: str, options: Mapping[str, Any] | None = None) -> Generator:
    """The generator of a family with its own config class; invalid options raise its error."""
    dataset, config = _classes()[family]
    made: Generator = dataset(config(seed=0, **(options or {})))
    return made


@cache
def legs() -> Mapping[str, int]:
    """Animals of ``leg_counting`` and their number of legs."""
    dataset, _ = _classes()["leg_counting"]
    table: Mapping[str, int] = vars(sys.modules[dataset.__module__])["ANIMALS"]
    return table


@cache
def _classes() -> Mapping[str, tuple[Any, Any]]:
    if find_spec("reasoning_gym") is None:
        raise InputError("package reasoning_gym is missing: install the project's dependencies with `make setup`")
    loaded: dict[str, tuple[Any, Any]] = {}
    with _bare_packages():
        for family, (name, dataset, config) in _FAMILIES.items():
            module = import_module(f"reasoning_gym.{name}")
            loaded[family] = (getattr(module, dataset), getattr(module, config))
    return loaded


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Stand-ins for packages whose ``__init__`` would import all 106 generators with sympy and
    matplotlib: 2.2 s and 100 MB per process against 0.06 s and 6 MB, and every training job and
    rollout worker is a process. Afterwards ``import reasoning_gym`` works as ever (tested).
    """
    if "reasoning_gym" in sys.modules:
        yield
        return
    spec = find_spec("reasoning_gym")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    try:
        for name in _PACKAGES:
            package = ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
        coaching = sys.modules["reasoning_gym.coaching"]
        for name, part in _COACHING.items():
            setattr(coaching, name, getattr(import_module(f"reasoning_gym.coaching.{part}"), name))
        yield
    finally:
        for name in _PACKAGES:
            sys.modules.pop(name, None)
