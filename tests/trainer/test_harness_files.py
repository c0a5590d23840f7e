"""Files of the harness: round trips, one-line edits, factors, and refusals that name the remedy."""

from __future__ import annotations

import difflib
import math
import re
import typing
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.harness_seed import BREVITY, CLIP_HIGHER, DIAGNOSTIC, FORMAT_TERM, LOWER_LR, SEED
from trainer.harness_files import (
    apply_edit,
    diff_factors,
    dump_diagnostic,
    dump_recipe,
    dump_term,
    parse_harness,
    recipe_factors,
    set_options,
)
from trainer.seed_harness import load_seed_files
from trainer.types import (
    Diagnostic,
    HarnessEdit,
    InputError,
    PutDiagnostic,
    PutTerm,
    Recipe,
    RewardRecipe,
    RewardTerm,
    SetOption,
    SetWeight,
)
from trainer.validation import one_line

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "optim.lr": st.floats(1e-12, 1),
    "optim.lr_warmup_steps": st.integers(0, 10**6),
    "algorithm.adv_estimator": st.sampled_from(["grpo", "rloo"]),
    "algorithm.norm_adv_by_std_in_grpo": st.booleans(),
    "algorithm.filter_groups.enable": st.booleans(),
    "algorithm.filter_groups.max_num_gen_batches": st.integers(1, 20),
    "actor.loss_agg_mode": st.sampled_from(["token-mean", "token-sum", "seq-mean-token-sum-norm"]),
    "actor.clip_ratio_high": st.floats(1e-9, 9.5),
    "actor.grad_clip": st.floats(1e-9, 1e300),
    "rollout.n": st.integers(2, 256),
    "data.levels": st.lists(st.integers(-9, 9), max_size=40).map(tuple),
}
OPTIONS = st.sampled_from(sorted(VALUES)).flatmap(lambda path: st.tuples(st.just(path), VALUES[path]))
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,40}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
TERM_SOURCE = TEXT.map(lambda text: f'"""A term."""\n\n\ndef reward(rows):\n\treturn [len({text!r})] * len(rows)\r\n')
METRIC_SOURCE = TEXT.map(lambda text: f'def metric(rollouts):\n    return len({text!r})  # """\\\n')
FINITE = st.floats(allow_nan=False, allow_infinity=False)
EDITS = st.one_of(
    OPTIONS.map(lambda o: SetOption(path=o[0], value=o[1])),
    st.builds(SetWeight, term=st.sampled_from(["outcome", "brevity"]), value=FINITE),
    st.builds(PutTerm, term=st.builds(RewardTerm, name=NAMES, description=TEXT, sql=TEXT), weight=FINITE),
    st.builds(PutTerm, term=st.builds(RewardTerm, name=NAMES, description=TEXT, python=TERM_SOURCE), weight=FINITE),
    st.builds(
        PutDiagnostic,
        diagnostic=st.builds(
            Diagnostic, name=NAMES, layer=st.just("signal"), description=TEXT, metric=TEXT, warn=FINITE, critical=FINITE
        ),
    ),
).map(lambda change: HarnessEdit(change=change))


def option(path: str, value: Any) -> HarnessEdit:
    return HarnessEdit(change=SetOption(path=path, value=value))


def changed_lines(before: str, after: str) -> list[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in diff if line[0] in "+-" and line[:3] not in ("+++", "---")]


@settings(deadline=None, max_examples=80)
@given(edit=EDITS)
def test_an_edit_changes_exactly_the_factor_it_declares(edit: HarnessEdit) -> None:
    before = parse_harness(SEED, "a")
    try:
        after = apply_edit(SEED, edit)
    except InputError as error:
        assert re.search("changes (nothing|reward.weights)", str(error)), (
            "a valid edit is refused only if it is no edit"
        )
        return
    harness = parse_harness(after, "b")
    assert diff_factors(before, harness) == (edit.factor,) == diff_factors(harness, before)
    match edit.change:
        case PutTerm(term=term, weight=weight):
            assert harness.terms[term.name] == term
            assert harness.recipe.reward.weights[term.name] == weight
        case PutDiagnostic(diagnostic=diagnostic):
            assert harness.diagnostics[diagnostic.name] == diagnostic
        case SetWeight(term=name, value=weight):
            assert harness.recipe.reward.weights[name] == weight
        case SetOption(path=path, value=value):
            node: Any = harness.recipe
            for part in path.split("."):
                node = getattr(node, part)
            assert node == value


@settings(deadline=None, max_examples=40)
@given(chosen=st.lists(OPTIONS, max_size=6), weights=st.dictionaries(st.sampled_from(["outcome", "brevity"]), FINITE))
def test_recipes_survive_the_file(chosen: list[tuple[str, Any]], weights: dict[str, float]) -> None:
    recipe = parse_harness(set_options(SEED, dict(chosen)), "").recipe
    recipe = recipe.model_copy(update={"reward": RewardRecipe(weights=weights)})
    text = dump_recipe(recipe)
    assert parse_harness({**SEED, "recipe.toml": text}, "").recipe == recipe
    assert dump_recipe(parse_harness({**SEED, "recipe.toml": text}, "").recipe) == text


@pytest.mark.parametrize("files", [SEED, load_seed_files()], ids=["canonical", "commented"])
@pytest.mark.parametrize("edit", [LOWER_LR, CLIP_HIGHER, option("data.levels", (1, 2)), option("rollout.n", 4)])
def test_an_option_is_one_line_of_diff_and_keeps_its_comment(files: dict[str, str], edit: HarnessEdit) -> None:
    after = apply_edit(files, edit)
    assert [path for path in files if files[path] != after[path]] == ["recipe.toml"]
    old, new = changed_lines(files["recipe.toml"], after["recipe.toml"])
    assert old.partition("#")[1:] == new.partition("#")[1:]
    assert old[1:].split("=")[0] == new[1:].split("=")[0]


def test_a_new_weight_is_one_added_line() -> None:
    files = load_seed_files()
    after = apply_edit(files, HarnessEdit(change=SetWeight(term="overlong", value=0.5)))
    assert changed_lines(files["recipe.toml"], after["recipe.toml"]) == ["+overlong = 0.5"]


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "[rollout]\nn = 4",
        'algorithm.filter_groups.metric = "score"\n[data]\nlevels = [\n  1, # easy\n  2,\n]\n',
        "[data]\r\nlevels = [1]\r\n[optim]\r\nlr = 0.1\r\n",
        "optim = {lr = 0.1}\n",
    ],
)
def test_options_are_set_however_the_recipe_is_written(recipe: str) -> None:
    files = {**SEED, "recipe.toml": recipe}
    before = parse_harness(files, "").recipe
    for edit in (LOWER_LR, option("data.levels", (3,)), option("algorithm.filter_groups.enable", True)):
        after = parse_harness(apply_edit(files, edit), "").recipe
        assert recipe_factors(before, after) == (edit.factor,)


def test_a_term_and_its_weight_are_one_factor_and_a_weight_alone_another() -> None:
    base = parse_harness(SEED, "")
    with_term = apply_edit(SEED, FORMAT_TERM)
    assert diff_factors(base, parse_harness(with_term, "")) == ("reward.term.format",)
    reweighted = set_options(with_term, {"reward.weights.format": 0.5})
    assert diff_factors(parse_harness(with_term, ""), parse_harness(reweighted, "")) == ("reward.weights.format",)
    two = set_options(with_term, {"optim.lr": 0.1, "rollout.n": 3})
    assert diff_factors(base, parse_harness(two, "")) == ("optim.lr", "reward.term.format", "rollout.n")


def test_a_weight_of_zero_is_no_weight() -> None:
    base = parse_harness(SEED, "")
    zero = parse_harness(set_options(SEED, {"reward.weights.brevity": 0.0}), "")
    assert diff_factors(base, zero) == ()


def test_removed_files_and_the_procedure_are_factors() -> None:
    base = parse_harness(SEED, "")
    files = {path: text for path, text in SEED.items() if path not in ("reward/brevity.toml", "procedure.toml")}
    assert diff_factors(base, parse_harness(files, "")) == ("reward.term.brevity",), "the default order is the seed's"
    files["procedure.toml"] = 'order = ["signal", "score"]'
    assert diff_factors(base, parse_harness(files, "")) == ("procedure", "reward.term.brevity")


def test_documentation_is_allowed_and_skipped() -> None:
    assert parse_harness({**SEED, "README.md": "# [not toml"}, "c") == parse_harness(SEED, "c")


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("recipe.toml", "[optim]\nlrr = 1e-3", "recipe.toml: optim.lrr: unknown key; did you mean 'lr'?"),
        ("recipe.toml", "[optin]\nlr = 1e-3", "recipe.toml: optin: unknown key; did you mean 'optim'?"),
        ("recipe.toml", "[rollout]\nzz = 1", "recipe.toml: rollout.zz: unknown key; known: n, temperature"),
        ("recipe.toml", '[optim]\nlr = "fast"', "recipe.toml: optim.lr: expected a valid number, got 'fast'"),
        ("recipe.toml", "[optim]\nlr = 2025-01-01", "recipe.toml: optim.lr: expected a valid number, got '2025-01-01'"),
        ("recipe.toml", "[rollout]\nn = true", "recipe.toml: rollout.n: expected a valid integer, got True"),
        ("recipe.toml", "[rollout]\nn = 1", "recipe.toml: rollout.n: expected greater than or equal to 2, got 1"),
        ("recipe.toml", "[reward.weights]\noutcome = nan", "reward.weights.outcome: expected a finite number, got nan"),
        ("recipe.toml", "[reward.weights]\nbrevty = 1", "reward.weights.brevty: no file reward/brevty.toml; did you mean"),
        ("recipe.toml", "[optim", "recipe.toml: not valid TOML: "),
        ("recipe.toml", "a = " + "[" * 5000, "recipe.toml: not valid TOML: "),
        ("recipe.toml", "#" * 70000, "recipe.toml: 70000 characters; keep it below 65536"),
        ("procedure.toml", 'order = ["scores"]', "procedure.toml: order.0: expected 'score', 'signal'"),
        ("procedure.toml", 'order = ["score", "score"]', "procedure.toml: order: a layer occurs twice"),
        ("procedure.toml", "", "procedure.toml: order: missing; add it"),
        ("reward/outcome.toml", 'name = "x"\ndescription = ""\nsql = ""', "name: expected 'outcome' as in the file name"),
        ("reward/outcome.toml", 'description = ""', "reward/outcome.toml: sql: missing; add it"),
        ("diagnostics/truncation.toml", 'layer = "x"', "diagnostics/truncation.toml: layer: expected 'score'"),
        ("reward/Bad Name.toml", "", "reward/Bad Name.toml: not a harness file"),
        ("reward/../x.toml", "", "reward/../x.toml: not a harness file"),
        (".gitattributes", "", ".gitattributes: not a harness file"),
    ],
)  # fmt: skip
def test_a_bad_file_gives_one_line_with_file_field_and_remedy(path: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_harness({**SEED, path: text}, "")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_named() -> None:
    with pytest.raises(InputError, match=r"recipe\.toml: missing"):
        parse_harness({k: v for k, v in SEED.items() if k != "recipe.toml"}, "")


def term_edit(**fields: Any) -> HarnessEdit:
    return HarnessEdit(change=PutTerm(term=BREVITY.model_copy(update=fields), weight=0.1))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (option("optim.lrr", 0.1), "optim.lrr: no such option; did you mean 'optim.lr'?"),
        (option("lr", 0.1), "lr: no such option; did you mean 'optim.lr'?"),
        (option("optim", 0.1), "optim: no such option"),
        (option("", 0.1), ": no such option"),
        (option("optim.lr.__class__", 0.1), "no such option"),
        (option("reward.weights.brevity", 0.1), "a weight is no option; use the change kind 'weight'"),
        (option("optim.lr", "0.1"), "optim.lr: expected a valid number, got '0.1'"),
        (option("optim.lr", math.nan), "optim.lr: expected a finite number, got nan"),
        (option("optim.lr", 2.0), "optim.lr: expected less than or equal to 1, got 2.0"),
        (option("rollout.n", True), "rollout.n: expected a valid integer"),
        (option("optim.lr", 3e-4), "edit: declares optim.lr but changes nothing"),
        (HarnessEdit(change=SetWeight(term="brevty", value=1)), "no such reward term; did you mean 'brevity'?"),
        (HarnessEdit(change=SetWeight(term="brevity", value=math.inf)), "brevity: expected a finite number, got inf"),
        (term_edit(), "declares reward.term.brevity but changes reward.weights.brevity"),
        (term_edit(name="../../etc/passwd"), "edit: name: expected [a-z]"),
        (term_edit(name="brevity\n"), "edit: name: expected [a-z]"),
        (term_edit(name=""), "edit: name: expected [a-z]"),
        (term_edit(name="-x"), "edit: name: expected [a-z]"),
        (term_edit(name="a" * 42), "edit: name: expected [a-z]"),
        (term_edit(sql="x" * 70000), "reward/brevity.toml: 70"),
        (term_edit(sql="\ud800"), "reward/brevity.toml: "),
    ],
)
def test_a_bad_edit_is_refused_and_says_why(edit: HarnessEdit, message: str) -> None:
    with pytest.raises(InputError) as caught:
        apply_edit(SEED, edit)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_edits_do_not_touch_their_input() -> None:
    files = dict(SEED)
    for edit in (LOWER_LR, FORMAT_TERM, DIAGNOSTIC):
        apply_edit(files, edit)
    assert files == SEED


@settings(deadline=None, max_examples=60)
@given(text=TEXT, name=NAMES, number=FINITE)
def test_terms_and_diagnostics_survive_the_file(text: str, name: str, number: float) -> None:
    term = RewardTerm(name=name, description=text, sql=text, source=text)
    diagnostic = Diagnostic(
        name=name, layer="score", description=text, metric=text, warn=number, critical=number, evidence=text
    )
    files = {
        **SEED,
        f"reward/{name}.toml": dump_term(term),
        f"diagnostics/{name}.toml": dump_diagnostic(diagnostic),
    }
    harness = parse_harness(files, "")
    assert harness.terms[name] == term
    assert harness.diagnostics[name] == diagnostic


@settings(deadline=None, max_examples=60)
@given(text=TEXT, name=NAMES, term_source=TERM_SOURCE, metric_source=METRIC_SOURCE)
def test_python_parts_survive_the_file(text: str, name: str, term_source: str, metric_source: str) -> None:
    term = RewardTerm(name=name, description=text, python=term_source)
    diagnostic = Diagnostic(name=name, layer="score", description=text, python=metric_source, warn=1, critical=2)
    files = {**SEED, f"reward/{name}.toml": dump_term(term), f"diagnostics/{name}.toml": dump_diagnostic(diagnostic)}
    harness = parse_harness(files, "")
    assert (harness.terms[name], harness.diagnostics[name]) == (term, diagnostic)
    assert harness.python_parts == (f"reward/{name}.toml", f"diagnostics/{name}.toml")
    assert parse_harness(SEED, "").python_parts == ()


def test_python_stands_in_the_file_as_it_is_written() -> None:
    source = "import re\n\n\ndef reward(rows):\n    return [float(bool(re.search(r'\\d', row['response']))) for row in rows]\n"
    text = dump_term(RewardTerm(name="digit", description="A digit.", python=source))
    assert 'python = """\nimport re\n\n\ndef reward(rows):\n' in text and "sql" not in text


REWARD = "def reward(rows):\n    return [1.0 for row in rows]\n"
METRIC = "def metric(rollouts):\n    return 0.5\n"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("reward/x.toml", {}, "sql: missing; add it, or `python`"),
        ("reward/x.toml", {"sql": "", "python": ""}, "sql: missing; add it, or `python`"),
        ("reward/x.toml", {"sql": "outcome", "python": REWARD}, "python: there is `sql` too; keep one of them"),
        ("diagnostics/x.toml", {}, "metric: missing; add it, or `python`"),
        ("diagnostics/x.toml", {"metric": "SELECT 1", "python": METRIC}, "python: there is `metric` too; keep one"),
        ("diagnostics/x.toml", {"python": METRIC, "evidence": "SELECT 1"}, "evidence: is SQL beside `python`"),
        ("reward/x.toml", {"python": METRIC}, "python: defines no function reward; define `def reward(rows):`"),
        ("diagnostics/x.toml", {"python": REWARD}, "defines no function metric; define `def metric(rollouts):`"),
        ("reward/x.toml", {"python": "def reward(rows) return 1"}, "python: line 1: expected ':': correct the source"),
        (
            "reward/x.toml",
            {"python": "def reward(rows):\n  return [r['\\0']\n"},
            "python: line 2: '[' was never closed",
        ),
        ("reward/x.toml", {"python": "def reward():\n  return []"}, "not called with one argument"),
        ("reward/x.toml", {"python": "def reward(rows):\n  yield 1"}, "no generator and not async"),
        ("reward/x.toml", {"python": "async def reward(rows):\n  return []"}, "no generator and not async"),
        ("diagnostics/x.toml", {"python": METRIC + "def evidence():\n  return []"}, "define `def evidence(rollouts):`"),
        ("reward/x.toml", {"python": "import os\n" + REWARD}, "import of os: use __future__, array, ast"),
        ("reward/x.toml", {"python": REWARD + "from time import time"}, "import of time: use "),
        ("reward/x.toml", {"python": REWARD + "from . import y"}, "import of a neighbour: use "),
        ("reward/x.toml", {"python": REWARD + "open('/etc/passwd')"}, "uses open: everything it may read is handed in"),
        ("reward/x.toml", {"python": REWARD + "__import__('os')"}, "uses __import__: write the code itself"),
        ("reward/x.toml", {"python": REWARD + "x = hash('a')"}, "uses hash: they differ between processes"),
        ("reward/x.toml", {"python": REWARD + "x = Reward"}, "name 'Reward' is not defined; did you mean 'reward'?"),
        ("reward/x.toml", {"python": "def reward(rows):\n  return [outcome]"}, "name 'outcome' is not defined"),
        ("reward/x.toml", {"python": "#" * 16_000 + "\n" + REWARD}, "characters; keep it below 16000"),
        ("reward/x.toml", {"python": "def reward(rows):\n  return " + "-" * 15_000 + "1"}, "python: cannot be parsed"),
        ("reward/x.toml", {"python": 3}, "python: expected a valid string, got 3"),
    ],
)
def test_a_python_part_that_breaks_its_contract_is_refused_in_one_line(
    path: str, fields: dict[str, Any], message: str
) -> None:
    diagnostic = {"layer": "score", "warn": 1, "critical": 2} if path.startswith("diagnostics/") else {}
    text = tomli_w.dumps({"description": "d", **diagnostic, **fields})
    with pytest.raises(InputError) as caught:
        parse_harness({**SEED, path: text}, "")
    assert str(caught.value).startswith(f"{path}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        REWARD,
        "from __future__ import annotations\nimport re, math\nfrom collections import Counter\nX = re.compile('a')\n"
        "class Seen:\n    least: float = math.inf\n    def of(self, row: dict) -> int:\n        return len(X.findall(row['a']))\n"
        "def reward(rows, *, seen=Seen()):\n    global LAST\n    LAST = Counter(r['a'] for r in rows)\n"
        "    def one(row):\n        try:\n            return sum(n for _, n in LAST.items()) + seen.of(row)\n"
        "        except (KeyError, ZeroDivisionError) as error:\n            return -len(str(error))\n"
        "    return [one(row) for row in rows if __name__]\n",
        "def reward(rows):\n    numbers = (i for i in range(9))\n    def inner():\n        yield 1\n    return [next(numbers)]\n",
    ],
)
def test_what_keeps_the_contract_is_accepted_and_never_run(source: str) -> None:
    text = dump_term(RewardTerm(name="x", description="d", python=source + "\n1 / 0\n"))
    assert parse_harness({**SEED, "reward/x.toml": text}, "").terms["x"].python.startswith(source)


def test_one_line_reads_unions_lists_and_counts() -> None:
    def refusal(data: Any) -> str:
        with pytest.raises(ValidationError) as caught:
            HarnessEdit.model_validate(data)
        return str(one_line(caught.value, "edit.json", HarnessEdit))

    assert refusal({"change": {"kind": "option", "path": "a", "valeu": 1, "value": 1}}).endswith(
        "change.option.valeu: unknown key; did you mean 'value'?"
    )
    assert "known: kind, path, value" in refusal({"change": {"kind": "option", "path": "a", "value": 1, "zzz": 1}})
    assert refusal({}) == "edit.json: change: missing; add it"
    assert refusal({"change": {"kind": "term", "term": {}, "weight": "x" * 999}}).endswith("(and 2 more)")
    assert len(refusal({"change": "x" * 999})) < 200


def test_every_recipe_option_can_be_set() -> None:
    """The options' strategy above is a sample; each leaf of Recipe must be reachable by its path."""

    def leaves(model: Any, prefix: str) -> typing.Iterator[tuple[str, Any]]:
        for key, value in model:
            if hasattr(value, "model_fields_set"):
                yield from leaves(value, f"{prefix}{key}.")
            elif key != "weights":
                yield prefix + key, value

    for path, value in leaves(Recipe(), ""):
        assert set_options(SEED, {path: value}) == SEED, path
