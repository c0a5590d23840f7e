from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.designer import design
from agents.edits import apply_change, failures_in_a_row, subtracts, value_text
from agents.rules import Rules, load_rules
from agents.types import Case, DesignInput, Dropped, Intervention, SkillRef
from tests.agents.situations import COLLAPSED, case_of, finding, situation, to_design
from trainer.harness_files import apply_edit, diff_factors, parse_harness
from trainer.seed_harness import load_seed_files
from trainer.types import (
    ActorRecipe,
    AlgorithmRecipe,
    FilterGroups,
    Finding,
    Recipe,
    RewardRecipe,
    SetOption,
    SetWeight,
    WarmStartRecipe,
)

RULES = load_rules()


def exhaust(inp: DesignInput, rules: Rules, limit: int = 200) -> list[Intervention]:
    """Interventions in the order in which they come when every one of them fails."""
    tried: list[Intervention] = []
    while len(tried) < limit and (idea := design(inp, rules)):
        tried.append(idea)
        inp = inp.model_copy(update={"cases": (*inp.cases, case_of(inp.diagnosis, idea))})
    return tried


def skill(**fields: object) -> SkillRef:
    given = {"name": "s", "description": "d", "domains": ("math",), "trigger": "headroom", "wins": 1, **fields}
    return SkillRef.model_validate(given)


def test_a_collapse_is_first_treated_by_a_lower_learning_rate(rules: Rules) -> None:
    found = (finding("performance_collapse"), finding("dead_groups", "critical", 0.8), finding("template_collapse"))
    for fs in (found, found[1:], found[:1]):
        inp = to_design(situation(*fs, recipe=COLLAPSED, scores={"validation/mean": 0.1}), rules)
        idea = design(inp, rules)
        assert idea is not None
        assert (idea.edit.factor, value_text(idea.edit.change)) == ("optim.lr", "0.0003")
        assert idea.title == "lower the learning rate to 3e-4"
        assert idea.rollback.startswith("set optim.lr back to 2e-3")


def test_a_factor_that_is_fixed_in_a_run_is_dropped_with_the_reason(rules: Rules) -> None:
    inp = to_design(situation(finding("dead_groups_all_pass", "warn", 0.3)), rules)
    assert "warm_start.worked" in {idea.edit.factor for idea in exhaust(inp, rules)}
    inp = inp.model_copy(update={"fixed": {"warm_start.worked": "no warm start here"}})
    tried = exhaust(inp, rules)
    assert "warm_start.worked" not in {idea.edit.factor for idea in tried}
    assert Dropped(factor="warm_start.worked", value="0.8", reason="no warm start here") in tried[0].dropped


def test_a_reward_term_that_did_not_run_is_the_one_that_loses_its_weight(rules: Rules) -> None:
    weights = {"outcome": 1.0, "brevity": 0.5, "format": 0.1}
    fault = finding("reward/format", "critical", 3.0, kind="validity", layer="score", error="timeout: no value")
    recipe = Recipe(reward=RewardRecipe(weights=weights))
    inp = to_design(situation(finding("dead_groups"), finding("reward_hacking"), fault, recipe=recipe), rules)
    assert inp.diagnosis.bottleneck == "faulty_term"
    idea = design(inp, rules)
    assert idea is not None
    assert (idea.edit.factor, value_text(idea.edit.change)) == ("reward.weights.format", "0.0")
    assert idea.title == "remove format, which did not run, from the reward"


def test_drift_under_a_filter_turns_the_filter_off(rules: Rules) -> None:
    recipe = Recipe(algorithm=AlgorithmRecipe(filter_groups=FilterGroups(enable=True)))
    inp = to_design(situation(finding("filtered_drift", "warn", 0.08), recipe=recipe), rules)
    tried = exhaust(inp, rules, limit=2)
    assert "0.08 nats" in inp.diagnosis.hypothesis
    assert tried[0].edit.factor == "algorithm.filter_groups.enable"


def test_a_second_try_takes_the_next_value(rules: Rules) -> None:
    inp = to_design(situation(finding("performance_collapse"), recipe=COLLAPSED), rules)
    first, second = exhaust(inp, rules, limit=2)
    assert [value_text(i.edit.change) for i in (first, second)] == ["0.0003", "0.0001"]


def test_a_healthy_policy_gets_many_different_ideas_with_the_learning_rate_first(rules: Rules) -> None:
    tried = exhaust(to_design(situation(), rules), rules)
    assert (tried[0].edit.factor, value_text(tried[0].edit.change)) == ("optim.lr", "0.0005")
    assert len({idea.edit.factor for idea in tried[:8]}) >= 7
    assert "actor.clip_ratio_high" not in {idea.edit.factor for idea in tried}


def test_a_warning_shares_the_floor_and_a_critical_one_keeps_it(rules: Rules) -> None:
    warned, critical = (
        exhaust(to_design(situation(finding("dead_groups", severity)), rules), rules, limit=5)
        for severity in ("warn", "critical")
    )
    own = set(rules.bottlenecks["dead_groups"].ideas)
    assert warned[0].rule == critical[0].rule == "dynamic-sampling"
    assert any(idea.rule not in own for idea in warned[:3])
    assert all(idea.rule in own for idea in critical)


def test_clip_higher_needs_several_updates_per_batch(rules: Rules) -> None:
    found = finding("low_diversity")
    once = design(to_design(situation(found), rules), rules)
    twice = design(to_design(situation(found, recipe=Recipe(actor=ActorRecipe(ppo_epochs=2))), rules), rules)
    assert once and twice and (once.rule != "clip-higher", twice.rule) == (True, "clip-higher")
    assert any(d.factor == "actor.clip_ratio_high" and "updates_per_batch" in d.reason for d in once.dropped)


def test_a_hacked_reward_loses_its_heaviest_shaping_term(rules: Rules) -> None:
    recipe = Recipe(reward=RewardRecipe(weights={"outcome": 1.0, "format": 0.2, "brevity": 0.5}))
    tried = exhaust(to_design(situation(finding("reward_hacking"), recipe=recipe), rules), rules)
    changes = [idea.edit.change for idea in tried]
    assert changes[0] == SetWeight(term="brevity", value=0.0)
    assert SetWeight(term="format", value=0.0) in changes
    assert SetWeight(term="brevity", value=0.15) in changes
    assert all(not (isinstance(c, SetWeight) and c.term == "outcome" and c.value == 0) for c in changes)


def test_a_reward_without_outcome_gets_it_back(rules: Rules) -> None:
    recipe = Recipe(reward=RewardRecipe(weights={"format": 1.0, "brevity": 0.5}))
    idea = design(to_design(situation(finding("reward_hacking"), recipe=recipe), rules), rules)
    assert idea and idea.edit.change == SetWeight(term="outcome", value=1.0)


def test_a_term_the_harness_has_is_weighted_and_a_new_one_is_put(rules: Rules) -> None:
    inp = to_design(situation(finding("truncation")), rules)
    known = {idea.edit.factor for idea in exhaust(inp, rules)}
    new = {idea.edit.factor for idea in exhaust(inp.model_copy(update={"terms": ("outcome",)}), rules)}
    assert "reward.weights.overlong" in known and "reward.term.overlong" not in known
    assert "reward.term.overlong" in new and "reward.weights.overlong" not in new
    assert "reward.weights.format" not in new


def test_an_unknown_bottleneck_falls_back_to_headroom(rules: Rules) -> None:
    idea = design(to_design(situation(finding("tool_streak", "critical")), rules), rules)
    assert idea and idea.rule in rules.bottlenecks["headroom"].ideas
    assert idea.hypothesis.startswith("The best of k samples")


def test_cases_elsewhere_and_skills_move_the_rank(rules: Rules) -> None:
    inp = to_design(situation(), rules)
    first = design(inp, rules)
    assert first and first.rule == "raise-lr"
    lost = case_of(inp.diagnosis, first, signature="math|other|")
    second = design(inp.model_copy(update={"cases": (lost,)}), rules)
    assert second and second.rule == "smaller-batch"
    won = skill(name="kl", factor="actor.use_kl_loss", value="false", wins=3)
    helped = design(inp.model_copy(update={"skills": (won,)}), rules)
    assert helped and (helped.edit.factor, helped.skills) == ("actor.use_kl_loss", ("kl",))
    warned = skill(name="lr", factor="optim.lr", value="0.0005", wins=0, losses=1)
    warned_off = design(inp.model_copy(update={"skills": (warned,)}), rules)
    assert warned_off and warned_off.rule == "smaller-batch"
    veto = skill(
        name="lr", factor="optim.lr", value="0.0001", wins=1, vetoes=("0.0005",), preconditions=("optim.lr > 1",)
    )
    vetoed = design(inp.model_copy(update={"skills": (veto,)}), rules)
    assert vetoed and vetoed.rule == "smaller-batch"
    assert any("skill lr: precondition optim.lr > 1" in d.reason for d in vetoed.dropped)


def test_a_skill_brings_a_value_the_playbook_does_not_have(rules: Rules) -> None:
    inp = to_design(situation(), rules)
    mine = skill(name="decay", factor="optim.weight_decay", value="0.1", wins=2)
    idea = design(inp.model_copy(update={"skills": (mine,)}), rules)
    assert idea and (idea.rule, idea.skills, value_text(idea.edit.change)) == ("skill:decay", ("decay",), "0.1")


def test_a_foreign_skill_waits_until_own_ideas_failed(rules: Rules) -> None:
    foreign = skill(name="far", domains=("swe",), factor="optim.weight_decay", value="0.1", wins=9)
    inp = to_design(situation(), rules, skills=[foreign])
    tried = [idea.rule for idea in exhaust(inp, rules)]
    assert "skill:far" in tried and tried.index("skill:far") >= 8


def test_a_skill_that_only_advises_is_recorded_and_not_taken(rules: Rules) -> None:
    inp = to_design(situation(), rules, skills=[skill(name="words", factor="reward.weights", value="", wins=5)])
    idea = design(inp, rules)
    assert idea and Dropped(factor="reward.weights", value="", reason="skill words only advises") in idea.dropped


def test_a_family_that_failed_twice_gives_way(rules: Rules) -> None:
    inp = to_design(situation(), rules)
    one = Case(
        signature="elsewhere", domain="math", bottleneck="x", factor="data.levels", value="[9]", verdict="rejected"
    )
    free, bound = (design(inp.model_copy(update={"cases": cases}), rules) for cases in ((), (one, one)))
    assert free and bound

    def cost(idea: Intervention, factor: str) -> str:
        return next(d.reason for d in idea.dropped if d.factor == factor and "ranks behind" in d.reason)

    for factor in ("data.train_batch_size", "rollout.n"):
        assert (cost(free, factor) == cost(bound, factor)) is not factor.startswith("data.")


def test_a_provisional_case_is_no_failure_and_an_undecided_one_is(rules: Rules) -> None:
    inp = to_design(situation(), rules)
    first = design(inp, rules)
    assert first
    for verdict, again in (("provisional", True), ("undecided", False), ("refused", False), ("failed", False)):
        cases = (case_of(inp.diagnosis, first, verdict),)
        idea = design(inp.model_copy(update={"cases": cases}), rules)
        assert idea and (idea.edit == first.edit) is again


recipes = st.sampled_from(
    [
        Recipe(),
        COLLAPSED,
        Recipe(actor=ActorRecipe(ppo_epochs=4, use_kl_loss=False, entropy_coeff=0.01, clip_ratio_high=0.28)),
        Recipe(
            algorithm=AlgorithmRecipe(adv_estimator="rloo", filter_groups=FilterGroups(enable=True, metric="score"))
        ),
        Recipe(reward=RewardRecipe(weights={"outcome": 0.5, "brevity": 0.5, "format": 0.0})),
    ]
)
alarms = st.lists(
    st.builds(
        finding,
        st.sampled_from([*RULES.bottlenecks, "made_up"]),
        st.sampled_from(["warn", "critical"]),
        st.floats(0, 1),
    ),
    unique_by=lambda f: f.diagnostic,
    max_size=3,
)
skills = st.lists(
    st.builds(
        skill,
        name=st.sampled_from(["a", "b"]),
        trigger=st.sampled_from(["headroom", "dead_groups"]),
        factor=st.sampled_from(["optim.lr", "data.levels", "reward.term.x", "no.such", "reward.weights.brevity"]),
        value=st.sampled_from(["0.0005", "3", "[0, 1]", '"x"', "", "{}", "1e9", "0.0003", "null"]),
        domains=st.sampled_from([("math",), ("swe",), ("*",)]),
    ),
    max_size=3,
)


@settings(max_examples=15)
@given(recipes, alarms, skills, st.data())
def test_never_a_failed_refused_dropped_or_empty_change(
    recipe: Recipe, found: list[Finding], skills: list[SkillRef], data: st.DataObject
) -> None:
    inp = to_design(situation(*found, recipe=recipe), RULES, skills=skills)
    seen: set[tuple[str, str]] = set()
    # Starting late in the list is as good as walking there one failure at a time.
    for past in exhaust(inp, RULES, limit=data.draw(st.sampled_from([0, 0, 12]))):
        inp = inp.model_copy(update={"cases": (*inp.cases, case_of(inp.diagnosis, past))})
        seen.add((past.edit.factor, value_text(past.edit.change)))
    for _ in range(4):
        idea = design(inp, RULES)
        assert idea == design(inp, RULES)
        if idea is None:
            break
        key = (idea.edit.factor, value_text(idea.edit.change))
        assert key not in seen
        assert key not in {(d.factor, d.value) for d in idea.dropped}
        seen.add(key)
        if idea.edit.change.kind != "term":
            assert apply_change(recipe, idea.edit.change) != recipe
        json.loads(key[1])
        for text in (idea.title, idea.rationale, idea.hypothesis, idea.success, idea.rollback, idea.rule):
            assert text.strip() and "\n" not in text
        if data.draw(st.booleans()):
            inp = inp.model_copy(update={"cases": (*inp.cases, case_of(inp.diagnosis, idea))})
        else:
            refused = Dropped(factor=key[0], value=key[1], reason="no signal")
            inp = inp.model_copy(update={"refused": (*inp.refused, refused)})


def test_every_design_applies_to_the_seed_harness_as_the_factor_it_declares(rules: Rules) -> None:
    files = load_seed_files("code")
    before = parse_harness(files, "seed")
    for found in ([], [finding("truncation")], [finding("over_filtering"), finding("format_failures")]):
        inp = to_design(situation(*found, recipe=before.recipe), rules)
        inp = inp.model_copy(update={"terms": tuple(before.terms)})
        ideas = exhaust(inp, rules, limit=25)
        assert len(ideas) == 25
        for idea in ideas:
            after = parse_harness(apply_edit(files, idea.edit), "candidate")
            assert diff_factors(before, after) == (idea.edit.factor,)


def test_worked_demonstrations_come_behind_cheaper_ideas_and_early_enough_to_be_tried(rules: Rules) -> None:
    weak = {"validation/mean": 0.4, "validation/pass@8": 0.7}
    for found in ((), (finding("dead_groups_all_fail"),), (finding("dead_groups_all_pass", "warn", 0.26),)):
        tried = exhaust(to_design(situation(*found, scores=weak), rules), rules, limit=8)
        places = [i for i, idea in enumerate(tried) if idea.rule == "worked-demonstrations"]
        assert places and 1 <= places[0] < 6, [idea.rule for idea in tried]
        idea = tried[places[0]]
        assert (idea.edit.factor, value_text(idea.edit.change)) == ("warm_start.worked", "0.8")
        assert idea.title == "warm-start on demonstrations of which 0.8 are worked"
        assert (idea.prediction.metric, idea.prediction.direction) == ("validation/mean", "up")


def test_a_start_that_is_good_or_chosen_already_is_left_alone(rules: Rules) -> None:
    chosen = Recipe(warm_start=WarmStartRecipe(worked=0.5))
    good = situation(scores={"validation/mean": 0.93, "validation/pass@8": 0.97})
    for inp in (good, situation(recipe=chosen)):
        assert "worked-demonstrations" not in {idea.rule for idea in exhaust(to_design(inp, rules), rules)}
    code = to_design(situation(finding("dead_groups_all_fail")), rules).model_copy(update={"domain": "code"})
    assert "worked-demonstrations" not in {idea.rule for idea in exhaust(code, rules)}, "measured: code ends lower"


def failed_on(bottleneck: str, count: int, factor: str = "optim.weight_decay") -> tuple[Case, ...]:
    return tuple(
        Case(
            signature="elsewhere",
            domain="math",
            bottleneck=bottleneck,
            factor=f"{factor}.{i}",
            value="1",
            verdict="rejected",
        )
        for i in range(count)
    )


def layer_of(idea: Intervention, rules: Rules) -> set[str]:
    """The layers of the bottlenecks that list the idea."""
    return {b.layer for b in rules.bottlenecks.values() if idea.rule in b.ideas}


def test_three_failures_on_a_layer_send_the_search_to_another_one(rules: Rules) -> None:
    rules = rules.model_copy(update={"ranking": rules.ranking.model_copy(update={"layer_streak": 5.0})})
    inp = to_design(situation(finding("dead_groups_all_pass", "warn", 0.4), finding("repetition", "warn", 0.3)), rules)
    assert inp.diagnosis.layer == "signal"
    first = design(inp, rules)
    other = design(inp.model_copy(update={"cases": failed_on(inp.diagnosis.bottleneck, 3)}), rules)
    assert first is not None and other is not None
    assert "signal" in layer_of(first, rules) and layer_of(other, rules) - {"signal"} and other.rule != first.rule
    for cases, escalate in (
        (failed_on(inp.diagnosis.bottleneck, 3), False),
        (failed_on(inp.diagnosis.bottleneck, 2), True),
    ):
        same = design(inp.model_copy(update={"cases": cases, "escalate": escalate}), rules)
        assert same is not None and same.rule == first.rule


def test_after_four_failures_taking_away_comes_before_adding(rules: Rules) -> None:
    recipe = Recipe(reward=RewardRecipe(weights={"outcome": 1.0, "format": 0.2}))
    inp = to_design(situation(recipe=recipe, scores={"validation/mean": 0.5, "validation/pass@8": 0.8}), rules)
    order = [subtracts(recipe, idea.edit.change) for idea in exhaust(inp, rules, limit=12)]
    later = inp.model_copy(update={"cases": failed_on("truncation", 4)})
    sooner = [subtracts(recipe, idea.edit.change) for idea in exhaust(later, rules, limit=12)]
    assert True in order and sooner.index(True) < order.index(True)


def test_what_is_a_subtraction() -> None:
    recipe = Recipe(reward=RewardRecipe(weights={"outcome": 1.0, "format": 0.2}))
    assert subtracts(recipe, SetWeight(term="format", value=0.0)) and not subtracts(
        recipe, SetWeight(term="format", value=0.1)
    )
    assert subtracts(recipe, SetOption(path="actor.use_kl_loss", value=False)) == recipe.actor.use_kl_loss
    assert not subtracts(recipe, SetOption(path="rollout.n", value=16))


def test_what_other_runs_saw_weighs_and_bars_nothing(rules: Rules) -> None:
    inp = to_design(situation(finding("dead_groups_all_pass", "warn", 0.3)), rules)
    order = exhaust(inp, rules, limit=4)

    def with_memory(*cases: Case) -> list[str]:
        return [i.rule for i in exhaust(inp.model_copy(update={"memory": cases}), rules, limit=80)]

    against = case_of(inp.diagnosis, order[0], version="other/v0001")
    wiser = with_memory(*[against] * 50)
    assert wiser[0] == order[1].rule and order[0].rule in wiser, "later, and not never"
    assert with_memory(case_of(inp.diagnosis, order[0], "undecided"))[0] == order[0].rule
    won = case_of(inp.diagnosis, order[2], "promoted", version="other/v0001")
    assert with_memory(won, won)[0] == order[2].rule
    assert with_memory(won.model_copy(update={"domain": "code"}))[0] == order[0].rule
    streak = tuple(case_of(inp.diagnosis, order[0]) for _ in range(5))
    assert failures_in_a_row(inp.model_copy(update={"memory": streak}).cases) == 0, (
        "others' failures are no streak of ours"
    )
