import os
import re
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.domains import load_domain
from trainer.domains.math.domain import MathDomain
from trainer.domains.math.expressions import solve
from trainer.domains.math.gym import generator
from trainer.domains.math.problems import problem_of
from trainer.domains.math.tables import LEVELS, MAX_ANSWER_SHARE, STYLES, WORDINGS, WORKED, Level
from trainer.domains.splits import interval
from trainer.types import InputError, Task

MATH = MathDomain()
VALIDATION = MATH.tasks("validation", 360)
CELLS = sorted({(level.family, level.level) for level in LEVELS})


def by_cell(tasks: list[Task]) -> dict[tuple[str, int], list[Task]]:
    return {cell: [t for t in tasks if (t.family, t.level) == cell] for cell in CELLS}


def test_there_are_four_families_of_several_levels() -> None:
    levels = Counter(family for family, _ in CELLS)
    assert set(levels) == set(WORDINGS)
    assert len(levels) == 4
    assert min(levels.values()) >= 2


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.family}-{level.level}")
def test_answers_are_reasoning_gyms_own(level: Level) -> None:
    source = generator(level.family, level.options)
    for i in range(200):
        entry = source[i]
        problem = problem_of(level, entry)
        assert solve(problem.text).answer == problem.answer
        assert source.score_answer(problem.answer, entry) == 1.0


def test_splits_and_shards_share_no_problem() -> None:
    drawn = [MATH.tasks("train", 600), VALIDATION, *(MATH.tasks("sealed", 120, shard) for shard in range(3))]
    ids = [task.id for tasks in drawn for task in tasks]
    assert len(set(ids)) == len(ids) == 600 + 360 + 3 * 120


def test_a_shorter_draw_is_a_prefix_and_levels_have_their_shares() -> None:
    assert MATH.tasks("validation", 50) == VALIDATION[:50]
    cells, total = by_cell(VALIDATION), sum(level.share for level in LEVELS)
    for level in LEVELS:
        # Every level has floor(t * share) tasks for one t: below its part by less than one task, and above it by
        # its share of what all levels are below theirs.
        share = level.share / total
        assert -1 < len(cells[level.family, level.level]) - 360 * share <= len(LEVELS) * share


def test_tasks_do_not_depend_on_the_process() -> None:
    code = (
        "from trainer.domains import load_domain; from hashlib import sha256; d = load_domain('math')\n"
        "print(sha256(repr((d.tasks('train', 40), d.demonstrations(40, 3))).encode()).hexdigest())"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1


def test_no_answer_is_worth_guessing() -> None:
    for tasks in by_cell(MATH.tasks("train", 1800)).values():
        (_, most), *_ = Counter(task.answer for task in tasks).most_common(1)
        assert most <= MAX_ANSWER_SHARE * len(tasks) + 1


def test_more_tasks_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.domains.math.domain.LEVELS", LEVELS[:1])
    with pytest.raises(InputError, match=r"distinct validation tasks .* 5000 were asked for: ask for fewer"):
        MATH.tasks("validation", 5000)


def test_gate_tasks_keep_the_structure_under_other_words_and_operands() -> None:
    gate = MATH.gate_tasks(VALIDATION)
    assert MATH.gate_tasks(VALIDATION) == gate
    assert len({task.id for task in gate}) == len(gate) == len(VALIDATION)
    operands = re.compile(r"\d+( (?!have)[a-z]+( (?!have)[a-z]+)?)?")
    for task, perturbed in zip(VALIDATION, gate, strict=True):
        assert (perturbed.family, perturbed.level) == (task.family, task.level)
        assert interval("gate").holds(perturbed.id)
        wordings = WORDINGS[task.family]
        ((text, _),) = readings(perturbed, wordings.gate)
        assert not readings(perturbed, wordings.tasks)
        ((before, _),) = readings(task, wordings.tasks)
        assert operands.sub("0", text) == operands.sub("0", before)
        assert text != before
        assert perturbed.answer == solve(text).answer


def readings(task: Task, wordings: tuple[str, ...]) -> list[tuple[str, str]]:
    """(expression, wording) for every way to read the task's prompt."""
    found = []
    for wording in wordings:
        before, after = (re.escape(part) for part in wording.split("{e}"))
        match = re.fullmatch(f"{before}(.+){after}", task.messages[0].content)
        try:
            if match and solve(match[1]):
                found.append((match[1], wording))
        except ValueError:
            continue
    return found


def test_gate_tasks_of_foreign_tasks_are_refused() -> None:
    foreign = VALIDATION[0].model_copy(update={"messages": MATH.gate_tasks(VALIDATION[:1])[0].messages})
    with pytest.raises(ValueError, match="not a generated task"):
        MATH.gate_tasks([foreign])


def test_demonstrations_are_right_and_cover_styles_and_all_wordings() -> None:
    demonstrations = MATH.demonstrations(1000, seed=1)
    assert demonstrations[:9] != MATH.demonstrations(9, seed=2)
    styles = Counter(d.style for d in demonstrations)
    for style, share in STYLES.items():
        # Binomial: five standard deviations.
        assert abs(styles[style] - 1000 * share) < 5 * (1000 * share * (1 - share)) ** 0.5
    seen = set()
    for d in demonstrations:
        for family, wordings in WORDINGS.items():
            task = Task(id="", domain="math", family=family, messages=d.messages, answer="")
            for text, wording in readings(task, wordings.tasks + wordings.gate):
                answer = solve(text).answer
                if (family == "complex_arithmetic") != answer.endswith("i"):
                    continue  # families share wordings
                judged = MATH.judge_one(task.model_copy(update={"answer": answer}), d.reply)
                assert judged.outcome == 1.0
                assert d.style == "steps" or judged.features["steps"] == 0
                seen.add((family, wording))
    assert seen == {(f, w) for f, words in WORDINGS.items() for w in words.tasks + words.gate}


@pytest.mark.parametrize("worked", [0.2, 0.8, 1.0])
def test_a_recipe_may_set_how_many_demonstrations_work_step_by_step(worked: float) -> None:
    mixed = MATH.demonstrations(1000, seed=1, worked=worked)
    count = Counter(d.style for d in mixed)[WORKED]
    # Binomial: five standard deviations.
    assert abs(count - 1000 * worked) <= 5 * (1000 * worked * (1 - worked)) ** 0.5
    own = MATH.demonstrations(1000, seed=1)
    assert MATH.demonstrations(1000, seed=1, worked=0.0) == own, "0 is the domain's own mix"
    assert [d.messages for d in mixed] == [d.messages for d in own], "the same problems in the same words"


def test_prompts_and_replies_are_short() -> None:
    for d in MATH.demonstrations(1000, seed=3):
        # A word and its leading space are one token, any other character is one.
        assert len(re.findall(r" ?[a-z]+|[^a-z]", d.messages[0].content)) + 2 <= MATH.prompt_length_hint
        assert len(d.reply) + 1 <= 64  # data.max_response_length of the seed recipe


def task_of(family: str, answer: str) -> Task:
    return Task(id="t", domain="math", family=family, messages=VALIDATION[0].messages, answer=answer)


@pytest.mark.parametrize("reply", ["#+12", "#12.0", "#012", "#1,2", "12", "#12 ", "#12#12", "#123", "#112", "#12."])
def test_what_the_generators_scorer_pays_for_is_no_outcome(reply: str) -> None:
    assert MATH.judge_one(task_of("chain_sum", "12"), reply).outcome == 0.0
    assert MATH.judge_one(task_of("chain_sum", "12"), "5+7=12 #12").outcome == 1.0


@pytest.mark.parametrize(("reply", "outcome"), [("#3-4i", 1.0), ("#3+-4i", 0.0), ("#-4i+3", 0.0), ("#3-5i", 0.0)])
def test_complex_answers_have_one_form(reply: str, outcome: float) -> None:
    assert MATH.judge_one(task_of("complex_arithmetic", "3-4i"), reply).outcome == outcome


@given(
    st.sampled_from(sorted(WORDINGS)),
    st.one_of(st.text(), st.text(alphabet="0123456789+-*=#i ()"), st.characters().map(lambda c: f"#{c}")),
)
def test_judge_never_raises_and_pays_only_the_exact_answer(family: str, reply: str) -> None:
    answer = "3-4i" if family == "complex_arithmetic" else "12"
    judged = MATH.judge_one(task_of(family, answer), reply)
    assert judged.outcome == float(reply.count("#") == 1 and reply.endswith(f"#{answer}"))
    assert tuple(judged.features) == MATH.feature_names


def test_single_turn() -> None:
    assert MATH.observe(VALIDATION[0], ["#1"]) is None


def test_an_unknown_domain_lists_the_names() -> None:
    with pytest.raises(InputError, match=r"'maths' is unknown: choose one of .*math"):
        load_domain("maths")


def test_importing_domains_is_light_and_leaves_reasoning_gym_whole() -> None:
    code = (
        "import sys, trainer.domains as domains\n"
        "assert 'reasoning_gym' not in sys.modules\n"
        "math = domains.load_domain('math'); task = math.tasks('validation', 13)[0]\n"
        "assert math.judge_one(task, '#' + task.answer).outcome == 1.0\n"
        "assert not {'sympy', 'matplotlib', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "import reasoning_gym\n"
        "assert reasoning_gym.create_dataset('gcd', seed=1)[0]['answer']\n"
        "from reasoning_gym.arithmetic import ChainSumDataset\n"
        "from trainer.domains.math.gym import generator\n"
        "assert isinstance(generator('chain_sum'), ChainSumDataset)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_levels_name_real_operands_bounds() -> None:
    for level, i in product(LEVELS, range(20)):
        text = problem_of(level, generator(level.family, level.options)[i]).text
        assert all(int(number) <= level.largest for number in re.findall(r"\d+", text))
