"""What the promotion gate reads and returns; see trainer.gate for the test itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.types import SCHEMA_VERSION, Evaluation, Record, Verdict

Level = Annotated[float, Field(gt=0, lt=1)]


class GatePolicy(Record):
    """How much evidence a promotion takes.

    ``alpha``: chance of any false promotion in a run. ``futility``: a screen with p above it ends the
    candidate. ``mde_target``: when the detectable effect is larger, the parent is worth a further seed
    (up to ``max_parent_seeds``). ``max_seeds``: how far an unconfirmed gain may be followed.
    ``proxy_level``, ``gap_level``, ``gate_level``: levels of the validity rule (see ``Validity``).
    """

    alpha: Level = 0.05
    j_plan: Annotated[int, Field(ge=1)] = 5
    q: Level = 0.5
    screen_seeds: Annotated[int, Field(ge=2)] = 2
    promote_seeds: Annotated[int, Field(ge=3)] = 3
    max_seeds: Annotated[int, Field(ge=3)] = 4
    max_parent_seeds: Annotated[int, Field(ge=3)] = 4
    mde_target: Annotated[float, Field(gt=0)] = 0.2
    futility: Level = 0.3
    min_varying_tasks: Annotated[int, Field(ge=1)] = 20
    level: Level = 0.95
    power: Level = 0.8
    proxy_level: Level = 0.01
    gap_level: Level = 0.01
    gate_level: Level = 0.05


class Arm(Record):
    """One version's evidence, one entry per training seed in the same order.

    ``validation`` decides the gain, ``gate`` is the never-rewarded scorer on the same seeds. ``proxy``
    is the mean of the *candidate's* reward over the late training rollouts, for the parent too (its
    rollouts under the candidate's reward); empty lets validation stand in.
    """

    version: str
    validation: tuple[Evaluation, ...]
    gate: tuple[Evaluation, ...]
    proxy: tuple[float, ...] = ()


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
    them and ``pool`` the spreads of all versions seen (the two arms themselves may be among them)."""

    parent: Arm
    candidate: Arm
    index: Annotated[int, Field(ge=0)] = 0
    spent: tuple[Annotated[float, Field(ge=0)], ...] = ()
    pool: tuple[VersionSpread, ...] = ()


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
    beyond. ``spread`` and ``parent_spread`` belong into the pool.
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
    validity: Validity
    spread: VersionSpread
    parent_spread: VersionSpread
