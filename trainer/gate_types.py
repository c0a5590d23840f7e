"""What the promotion gate reads and returns; see trainer.gate for the test itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from trainer.types import SCHEMA_VERSION, Evaluation, Record, Verdict

Level = Annotated[float, Field(gt=0, lt=1)]


class Look(NamedTuple):
    """A reading of a candidate at its first ``seeds`` seeds: it promotes at p ≤ ``share`` × the candidate's share of
    alpha (a share of 0 only screens) and ends a candidate whose p lies above ``futility``."""

    seeds: Annotated[int, Field(ge=2)]
    share: Annotated[float, Field(ge=0, le=1)]
    futility: Annotated[float, Field(gt=0, le=1)]


class GatePolicy(Record):
    """How much evidence a promotion takes. The default is the short form, for runs of minutes; ``LONG`` is the other.

    ``strategy``: ``certify`` lets the search go on from weak evidence and tests the end of the chain on fresh seeds;
    ``each`` tests every candidate. ``search_seeds``: seeds of a candidate of the first kind. ``certify_share``: the part
    of what is left of alpha that a certification takes; a run that is resumed may certify again. ``use_calibration``:
    noise floors of earlier runs count too.
    ``alpha``: chance of any false promotion in a run. ``looks``: the readings of a candidate; empty means a screen at
    ``screen_seeds`` with ``futility``, then the whole share at ``promote_seeds``. ``parent_seeds``: the parent has that
    many before anything is promoted over it. ``mde_target``: when the detectable effect is larger, it is worth a further
    one (up to ``max_parent_seeds``). ``max_seeds``: how far an unconfirmed gain may be followed. ``certify_seeds``: fresh
    seeds a side of ``certify``. ``provisional_se``: standard errors a provisional step takes (a negative number takes
    steps that the scores speak against: to try out a chain).
    ``proxy_level``, ``gap_level``, ``gate_level``: levels of the validity rule (see ``Validity``).
    """

    strategy: Literal["certify", "each"] = "certify"
    alpha: Level = 0.05
    j_plan: Annotated[int, Field(ge=1)] = 5
    q: Level = 0.5
    looks: tuple[Look, ...] = ()
    screen_seeds: Annotated[int, Field(ge=2)] = 2
    promote_seeds: Annotated[int, Field(ge=3)] = 3
    parent_seeds: Annotated[int, Field(ge=3)] = 3
    max_seeds: Annotated[int, Field(ge=3)] = 4
    max_parent_seeds: Annotated[int, Field(ge=3)] = 4
    search_seeds: Annotated[int, Field(ge=1)] = 2
    certify_seeds: Annotated[int, Field(ge=3)] = 4
    certify_share: Level = 0.8
    use_calibration: bool = True
    provisional_se: Annotated[float, Field(ge=-100)] = 1.0
    mde_target: Annotated[float, Field(gt=0)] = 0.2
    futility: Level = 0.3
    min_varying_tasks: Annotated[int, Field(ge=1)] = 20
    level: Level = 0.95
    power: Level = 0.8
    proxy_level: Level = 0.01
    gap_level: Level = 0.01
    gate_level: Level = 0.05

    @property
    def first_seeds(self) -> int:
        """Training seeds of a candidate before its first reading."""
        return self.search_seeds if self.strategy == "certify" else self.plan[0].seeds

    @property
    def plan(self) -> tuple[Look, ...]:
        """The looks in force."""
        return self.looks or (
            Look(self.screen_seeds, 0.0, self.futility),
            Look(max(self.promote_seeds, self.screen_seeds + 1), 1.0, 1.0),
        )

    @model_validator(mode="after")
    def _looks_share_one_test(self) -> Self:
        if not self.looks:
            return self
        if any(a.seeds >= b.seeds for a, b in pairwise(self.looks)):
            raise ValueError("looks: seeds must rise from look to look")
        if any(look.share > 0 and look.seeds < 3 for look in self.looks):
            raise ValueError("looks: a look of fewer than 3 seeds only screens; give it share 0")
        if self.looks[-1].share == 0 or sum(look.share for look in self.looks) > 1 + 1e-9:
            raise ValueError("looks: the shares must sum to at most 1, and the last look must have one")
        return self


LONG = GatePolicy(
    j_plan=12,
    q=0.7,
    looks=(Look(2, 0.0, 0.3), Look(3, 0.3, 0.2), Look(4, 0.3, 0.1), Look(6, 0.4, 1.0)),
    parent_seeds=6,
    max_parent_seeds=6,
    max_seeds=7,
)
"""For runs of hours: more candidates share the budget, a candidate is followed to six seeds, its parent has six."""


class Arm(Record):
    """One version's evidence, one entry per training seed in the same order.

    ``validation`` decides the gain, ``gate`` is the never-rewarded scorer on the same seeds. ``proxy``
    is the mean of the *candidate's* reward over the late training rollouts, for the parent too (its
    rollouts under the candidate's reward); empty lets validation stand in. ``stalled``: all its trainings ended for want of
    a learning signal, so that its seeds may well be one and the same policy, and then say nothing of the noise of training.
    """

    version: str
    validation: tuple[Evaluation, ...]
    gate: tuple[Evaluation, ...]
    proxy: tuple[float, ...] = ()
    stalled: bool = False


class VersionSpread(Record):
    """How much one version's seeds differ on validation; ``r`` is the sampling noise of one task.
    Only versions of the same ``protocol_hash`` are pooled."""

    version: str
    protocol_hash: str
    variance: float
    df: int
    n_tasks: int
    r: float


class GateInput(Record):
    """``index`` counts the candidates judged before; ``spent`` holds ``GateReport.spent`` of each of
    them, ``pool`` the spreads of all versions seen (the two arms themselves may be among them) and
    ``deltas`` the deltas of earlier candidates. ``calibration`` is a noise floor that earlier runs left
    (trainer.gate_calibration): it counts with at most CALIBRATION_DF degrees of freedom."""

    parent: Arm
    candidate: Arm
    index: Annotated[int, Field(ge=0)] = 0
    spent: tuple[Annotated[float, Field(ge=0)], ...] = ()
    pool: tuple[VersionSpread, ...] = ()
    calibration: VersionSpread | None = None
    deltas: tuple[float, ...] = ()


class Reading(Record):
    """What a look found: p from the candidate's first ``seeds`` seeds against the ``level`` that promotes (0: none)."""

    seeds: int
    p: float
    level: float
    futility: float


class Validity(Record):
    """Does the gain of the proxy A carry over to the gate scorer B? With the gap g = B − ½A, seed by seed:

    invalid if p(ΔA > 0) ≤ .01 and p(Δg < 0) ≤ .01 and not p(ΔB > 0) ≤ .05; unconfirmed if the first and
    the third hold without the second.
    """

    state: Literal["clean", "invalid", "unconfirmed", "not judged"]
    proxy: Literal["reward", "validation"] = "reward"
    proxy_delta: float | None = None
    gate_delta: float | None = None
    p_proxy: float | None = None
    p_gap: float | None = None
    p_gate: float | None = None


class GateReport(Record):
    """The current reading; with status ``needs_seeds`` train what is asked for and judge again.

    ``ci_low, ci_high``: two-sided interval of ``delta``. ``p``: one-sided, None below two seeds an arm.
    ``share``: the alpha available here; ``spent``: what a final verdict keeps of it (append it to
    ``GateInput.spent``). ``mde``: effect found with 80 % power at the promotion look, ``mde_upper`` the
    same at the upper bound of σ; None while no arm has a second seed. ``need_seeds`` further candidate
    seeds; ``need_parent_seeds`` further parent seeds, required only up to ``promote_seeds`` and advice
    beyond. ``readings``: p at every look reached. ``shrunken``: what to expect of fresh seeds, delta·τ²/(τ² + V)
    with τ² from the run's deltas; None before the third. ``spread`` and ``parent_spread`` belong into the pool.
    ``blocked_by`` is the evolved validity diagnostic that made a gain invalid, ``unblocked`` the verdict without it.
    """

    schema_version: int = SCHEMA_VERSION
    parent: str
    candidate: str
    status: Literal["final", "needs_seeds"]
    verdict: Verdict
    reasons: tuple[str, ...]
    delta: float
    ci_low: float
    ci_high: float
    p: float | None
    share: float
    spent: float
    sigma: float
    mde: float | None
    mde_upper: float | None
    n_seeds: int
    n_parent_seeds: int
    varying_tasks: int
    need_seeds: int = 0
    need_parent_seeds: int = 0
    readings: tuple[Reading, ...] = ()
    shrunken: float | None = None
    validity: Validity
    spread: VersionSpread
    parent_spread: VersionSpread
    blocked_by: str = ""
    unblocked: Verdict | None = None
