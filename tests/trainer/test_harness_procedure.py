"""The order of diagnosis as a file of the harness: one edit, one factor."""

from __future__ import annotations

import pytest

from tests.trainer.harness_seed import SEED
from trainer.harness_files import apply_edit, diff_factors, parse_harness
from trainer.types import HarnessEdit, InputError, Layer, SetProcedure


def test_an_edit_of_the_procedure_keeps_its_comments_and_is_one_factor() -> None:
    order: tuple[Layer, ...] = ("behaviour", "score", "signal", "version")
    files = {**SEED, "procedure.toml": "# why\n" + SEED["procedure.toml"]}
    after = apply_edit(files, HarnessEdit(change=SetProcedure(order=order)))
    assert parse_harness(after, "").procedure == order
    assert after["procedure.toml"].startswith("# why\norder = [")
    assert diff_factors(parse_harness(files, ""), parse_harness(after, "")) == ("procedure",)
    for bad in (order[:1] * 4, parse_harness(SEED, "").procedure):
        with pytest.raises(InputError, match=r"occurs twice|changes nothing"):
            apply_edit(files, HarnessEdit(change=SetProcedure(order=bad)))
