"""The report page: complete, self-contained, and harmless whatever a rollout says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.backtest_score import record_of
from agents.types import (
    BacktestRecord,
    BacktestReport,
    Check,
    Diagnosis,
    Dropped,
    Intervention,
    PastPrediction,
    Prediction,
    SkillRef,
)
from graph import svg
from graph.curves import PASS_AT_K, K, average, pass_at_k_series, read_curves, read_metrics
from graph.reliability import reliability
from graph.report import claimed, context, environment, held, render_report, visible
from graph.report_types import (
    ChainRow,
    Command,
    CostRow,
    Curve,
    Estimate,
    HarnessCommit,
    Health,
    PaidTerm,
    PolicyRow,
    Reading,
    ReportData,
    SampleRollout,
    SolveRates,
    VersionRow,
)  # fmt: skip
from tests.trainer.gate_arms import arm
from tests.trainer.rollout_tables import GROUPS, STEPS, Columns, N
from tests.trainer.rollout_tables import write as write_rollouts
from trainer.evaluation import pass_at_k
from trainer.gate import GateInput, GatePolicy, GateReport, judge
from trainer.types import Cost, Finding, HarnessEdit, ReplayReport, SetOption

VOID = {"meta", "link", "br", "wbr", "img", "hr", "input"}
HOSTILE = "<script>alert(1)</script></details></pre></title><img src=x onerror=go()>\"' onload='x' {{ 7 * 7 }} é 漢字 \u202e\x00 \ud800 😀"


class Outline(HTMLParser):
    """Checks that tags balance, and keeps tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def estimate(mean: float) -> Estimate:
    return Estimate(mean=mean, ci_low=mean - 0.03, ci_high=mean + 0.03, n=200)


def judged_gate(text: str) -> GateReport:
    """A real verdict of the gate over five seeds each, with ``text`` as its first reason."""
    rng = np.random.default_rng(0)
    seeds = (0.0, 0.01, -0.01, 0.02, -0.02)
    arms = [arm(rng, name, [mean + s for s in seeds]) for name, mean in (("v0000", 0.4), ("v0001", 0.5))]
    report = judge(GateInput(parent=arms[0], candidate=arms[1]), GatePolicy())
    return report.model_copy(update={"reasons": (text, *report.reasons[1:])})


def full(text: str) -> ReportData:
    """A report with every part, and ``text`` wherever text may go."""
    finding = Finding(
        diagnostic=text, kind="pathology", layer="signal", severity="critical", value=None, line=0.3, description=text
    )
    diagnosis = Diagnosis(
        version="v0000", bottleneck=text, layer="signal", severity="critical", findings=(finding,), hypothesis=text,
        alternatives=(text,), signature=text,
    )  # fmt: skip
    intervention = Intervention(
        title=text, edit=HarnessEdit(change=SetOption(path="optim.lr", value=1e-3)), rationale=text, hypothesis=text,
        prediction=Prediction(metric=text, direction="down", min_effect=0.1), success=text, rollback=text, rule=text,
        skills=(text,), dropped=(Dropped(factor=text, value=text, reason=text),),
    )  # fmt: skip
    replay = ReplayReport(factor="optim.lr", applicable=True, rollouts=1920, metrics={text: (0.4, 1.0)})
    candidate = VersionRow(
        version="v0001", parent="v0000", verdict="promoted", reasons=(text, "delta"), factor=text, old=text, new=text,
        gate=judged_gate(text), realised=-0.2, delta=estimate(0.05), seeds=3, harness_commit="c" * 40, diagnosis=diagnosis,
        intervention=intervention, diff=f"@@ -1 +1 @@\n-{text}\n+{text}",
        backtest=BacktestReport(
            verdict="pass", checks=(Check(name=text, passed=True, detail=text),), reasons=(text,), replay=replay
        ),
    )  # fmt: skip
    curve = Curve(version="v0001", metric="outcome/mean", seeds=2, x=(1, 2), mean=(0, 1), low=(0, 0.9), high=(0, 1))
    return ReportData(
        run=text, domain=text, seed=1, status=text, wall_s=3723, train_s=61, orchestration_share=0.03, policy=text,
        protocol_hash=text, champion="v0001", baseline="v0000", gain=estimate(0.06), learned=estimate(0.18),
        policies=(
            PolicyRow(role="champion", version="v0001", sealed=estimate(0.7), validation=estimate(0.71)),
            PolicyRow(role=text, version=text, checkpoint=text),
        ),
        versions=(VersionRow(version="v0000", verdict="baseline"), candidate),
        track=record_of([
            PastPrediction(version=text, factor=f"{text}.x", prediction=intervention.prediction, replayed=-0.3, realised=-0.2)
        ]),
        chains=(ChainRow(
            steps=("v0000", text), verdict="undecided", selected=estimate(0.08), fresh=estimate(0.02), seeds=4, sigma=0.02,
            mde=0.05, reasons=(text,),
        ),),
        rates=(SolveRates(version="v0000", rates=(1.0, 0.0)), SolveRates(version=text, rates=(0.5, 0.9), gained=3, lost=2)),
        health=Health(run=text, version=text, scores={}, courses={}, readings=tuple(
            Reading(finding=finding.model_copy(update={"severity": severity}), warn=0.1, critical=0.2) for severity in ("warn", "ok")
        )),
        curves=(curve, curve.model_copy(update={"version": "v0000"})),
        rollouts=(SampleRollout(
            rollout_id=text, version=text, step=3, prompt=text, response=text, answer=text, extracted=text, outcome=0.0,
            score=-0.5, truncated=True, terms=(PaidTerm(name=text, value=0.25, weight=2.0),),
        ),),
        skills=(SkillRef(name=text, description=text, domains=(text,), trigger=text, factor=text, value=text, body=text),),
        history=(HarnessCommit(commit="c" * 40, subject=text, body=text),),
        costs=(CostRow(item=text, cost=Cost(wall_s=1.5, tokens=10**6)),),
        commands=(Command(purpose=text, command=text),),
    )  # fmt: skip


def rendered(data: ReportData, folder: Path) -> str:
    render_report(data, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = rendered(full(HOSTILE), tmp_path)
    outline = Outline(page)
    plain = Outline(rendered(full("plain words"), tmp_path))
    # A dotted name may gain break opportunities, nothing else.
    assert [tag for tag in outline.tags if tag != "wbr"] == [tag for tag in plain.tags if tag != "wbr"]
    assert "script" not in outline.tags and "img" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert "<script>alert(1)</script></details>" in outline.text  # shown, not run
    assert "{{ 7 * 7 }}" in outline.text and "漢字" in outline.text
    assert "␀" in outline.text and "⟨U+202E⟩" in outline.text and "⟨U+D800⟩" in outline.text
    assert not {"\x00", "\u202e"} & {*page}


def test_page_needs_no_network(tmp_path: Path) -> None:
    page = rendered(full("see https://example.org/x.js"), tmp_path)
    outline = Outline(page)
    loading = {"src", "srcset", "data", "action", "poster", "background", "xlink:href"}
    assert not [pair for pair in outline.attributes if pair[0] in loading]
    assert all((value or "").startswith("#") for name, value in outline.attributes if name == "href")
    assert not {"link", "iframe", "object", "embed", "base"} & {*outline.tags}
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in outline.attributes


def test_a_verdict_shows_its_reason_its_figures_and_all_reasons(tmp_path: Path) -> None:
    data = full("x")
    gate = judged_gate("beats its parent")
    row = data.versions[1].model_copy(update={"gate": gate, "reasons": gate.reasons})
    page = rendered(data.model_copy(update={"versions": (data.versions[0], row)}), tmp_path)
    table = Outline(page[page.index('<table class="versions">') : page.index("</table>") + len("</table>")])
    text = " ".join(table.text.split())
    assert gate.mde is not None
    for shown in (f"{100 * gate.mde:.1f} pp", f"{100 * gate.sigma:.1f} pp", "5 to 5 of the parent", *gate.reasons):
        assert shown in text
    assert "details" in table.tags


def test_steps_of_a_certified_chain_count_as_come_into_main() -> None:
    data = full("x")
    (chain,) = data.chains
    assert claimed(data) == {"v0001"}
    certified = chain.model_copy(update={"steps": ("v0000", "v0002", "v0003"), "verdict": "promoted"})
    assert claimed(data.model_copy(update={"chains": (chain, certified)})) == {"v0001", "v0002", "v0003"}


def test_links_lead_to_stories(tmp_path: Path) -> None:
    outline = Outline(rendered(full("x"), tmp_path))
    targets = {f"#{value}" for name, value in outline.attributes if name == "id"}
    links = {value for name, value in outline.attributes if name == "href"}
    assert links == {"#story-2"} and links <= targets


def test_empty_run_renders(tmp_path: Path) -> None:
    data = ReportData(run="r", domain="math", seed=1, status="interrupted", wall_s=0.2)
    text = Outline(rendered(data, tmp_path)).text
    assert "No versions yet" in text and "No version has been evaluated yet." in text


@given(st.text(max_size=40))
@settings(max_examples=25)
def test_any_text_renders_balanced(text: str) -> None:
    Outline(environment().get_template("report.html").render(context(full(text))))


@pytest.mark.parametrize(
    ("champion", "gain", "words"),
    [
        ("v0000", None, "1 candidate trained, none promoted: the baseline v0000"),
        ("v0001", 0.06, "better than the baseline: +6.0 pp"),
        ("v0001", 0.01, "not clearly apart from the baseline"),
        ("v0001", -0.06, "worse than the baseline: −6.0 pp"),
    ],
)
def test_headline_says_what_the_interval_allows(champion: str, gain: float | None, words: str) -> None:
    data = full("x").model_copy(update={"champion": champion, "gain": None if gain is None else estimate(gain)})
    assert words in context(data)["headline"]


@pytest.mark.parametrize(("direction", "realised", "expected"), [("up", 0.1, True), ("up", 0.09, False), ("down", -0.2, True), ("down", 0.2, False)])  # fmt: skip
def test_prediction_holds_only_with_direction_and_size(direction: str, realised: float, expected: bool) -> None:
    prediction = Prediction.model_validate({"metric": "m", "direction": direction, "min_effect": 0.1})
    assert held(prediction, realised) is expected


@given(st.text())
def test_what_acts_or_hides_is_shown_and_the_rest_stays(text: str) -> None:
    page = visible(text)
    assert all(c.isprintable() or c in "\n\t\u3000\xa0" or c.isspace() for c in page)
    assert visible(page) == page
    if text.isprintable():
        assert page == text


def test_a_prediction_is_drawn_in_multiples_of_what_was_predicted() -> None:
    drawn = context(full("x"))["predictions"]
    assert drawn["held"] == 1  # predicted down by 0.1, realised -0.2
    assert "2.0000" in drawn["rows"][0][-1] and "good" in drawn["rows"][0][-1]
    assert context(ReportData(run="r", domain="math", seed=1, status="s", wall_s=0))["predictions"] is None


def track(*replayed: float | None) -> BacktestRecord:
    """Versions that predicted and brought a fall of 0.2, and what their replays said."""
    prediction = Prediction(metric="m", direction="down", min_effect=0.1, probability=0.9)
    return record_of(
        [
            PastPrediction(version=f"v{i}", factor="data.levels", prediction=prediction, replayed=value, realised=-0.2)
            for i, value in enumerate(replayed)
        ]
    )


def test_the_score_of_predictions_and_replays_is_shown_with_its_interval(tmp_path: Path) -> None:
    data = full("x").model_copy(update={"track": track(-0.1, 0.1, None)})
    text = " ".join(Outline(rendered(data, tmp_path)).text.split())
    assert "3 of 3 right (44 to 100 %)realised / foretold 2 (2 to 2); Brier score 0.01" in text
    assert text.count("1 of 2 right (9 to 91 %)") == 2 and "replays of data factors" in text
    assert reliability(track()) is None and reliability(None) is None


def test_what_was_foretold_lies_on_the_diagonal_where_it_came_true() -> None:
    """Both axes have one scale, so that equal values lie where the line from corner to corner is."""
    drawn = svg.scatter([svg.Dot(0.2, 0.2, "a", "t"), svg.Dot(-0.2, 0.1, "b", "t")], "l", "x", "y")
    places = {
        css: (float(x), float(y)) for x, y, css in re.findall(r'cx="([^"]+)" cy="([^"]+)" r="4" class="end (.)"', drawn)
    }
    (x1, y1, x2, y2) = next(
        tuple(map(float, found)) for found in re.findall(r'x1="([^"]+)" y1="([^"]+)" x2="([^"]+)" y2="([^"]+)"', drawn)
    )

    def height(x: float) -> float:
        return y1 + (x - x1) / (x2 - x1) * (y2 - y1)

    # Places are rounded to a tenth of a pixel.
    assert places["a"][1] == pytest.approx(height(places["a"][0]), abs=0.2)
    assert places["b"][1] < height(places["b"][0]) - 1  # above the line: more came than was foretold


def test_a_check_that_could_not_tell_is_not_drawn_as_passed(tmp_path: Path) -> None:
    row = full("replay").versions[1]
    assert row.backtest
    silent = row.model_copy(update={"backtest": row.backtest.model_copy(update={"untold": ("replay",)})})
    for version, mark in ((row, "✓ replay"), (silent, "– replay")):
        data = full("replay").model_copy(update={"versions": (version,)})
        assert mark in Outline(rendered(data, tmp_path)).text


def test_every_reward_term_of_a_sample_is_shown_with_what_it_paid(tmp_path: Path) -> None:
    text = " ".join(Outline(rendered(full("brevity"), tmp_path)).text.split())
    assert "Reward termValueWeightPaid brevity0.2520.5" in text
    assert "+3 −2 tasks" in text


# --------------------------------------------------------------------------- curves


def write(path: Path, values: list[float], tail: str = "") -> Path:
    lines = [
        json.dumps({"step": i, "data": {"tokens/total": 100 * i, "outcome/mean": v}}) for i, v in enumerate(values, 1)
    ]
    path.write_text("\n".join(lines) + "\n" + tail, encoding="utf-8")
    return path


def test_curves_average_seeds_and_keep_their_range(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", [0.2] * 20), write(tmp_path / "b", [0.6] * 20)]
    (curve,) = read_curves({"v0001": files})
    assert (curve.metric, curve.seeds) == ("outcome/mean", 2)
    assert {*curve.mean} == {0.4} and {*curve.low} == {0.2} and {*curve.high} == {0.6}
    assert list(curve.x) == sorted(curve.x) and curve.x[0] > 0 and curve.x[-1] < 2000


def test_a_seed_that_stopped_early_counts_only_where_it_was(tmp_path: Path) -> None:
    (curve,) = read_curves({"v": [write(tmp_path / "a", [0.0] * 10), write(tmp_path / "b", [1.0] * 20)]})
    assert curve.mean[0] == 0.5 and curve.mean[-1] == 1.0


@pytest.mark.parametrize(
    "tail", ['{"step": 9, "da', '{"step": 9}\n[]\n7\nnull\n', '{"data": {"tokens/total": NaN}}', "\x00\ufffd"]
)
def test_damaged_lines_are_skipped(tmp_path: Path, tail: str) -> None:
    sound = read_curves({"v": [write(tmp_path / "sound", [0.1, 0.2, 0.3])]})
    assert sound and read_curves({"v": [write(tmp_path / "torn", [0.1, 0.2, 0.3], tail)]}) == sound


def test_missing_file_and_no_points(tmp_path: Path) -> None:
    assert [*read_metrics(tmp_path / "none")] == []
    assert read_curves({"v": [tmp_path / "none"]}) == ()


def test_pass_at_k_per_step_is_the_unbiased_one_over_groups(tmp_path: Path) -> None:
    def solved(c: Columns) -> None:
        c["outcome"] = (c["outcome"] * 0 + (c["rollout_id"] < "r000003")).astype(float)  # three of the first group

    (series,) = pass_at_k_series([write_rollouts(tmp_path / "rollouts", solved)])
    first = pass_at_k([[1.0] * 3 + [0.0] * (N - 3), *[[0.0] * N] * (GROUPS - 1)], K)
    assert [y for _, y in series] == pytest.approx([first] + [0.0] * (STEPS - 1))
    step_tokens = GROUPS * sum(18 + member % 3 for member in range(N))
    assert series[0][0] == pytest.approx(step_tokens, rel=0.01)  # lengths follow rows, not members
    assert [x for x, _ in series] == sorted({x for x, _ in series})
    (curve,) = read_curves({"v": [tmp_path / "none"]}, {"v": [tmp_path / "rollouts"]})
    assert (curve.metric, curve.seeds) == (PASS_AT_K, 1)


points = st.lists(st.tuples(st.floats(0, 1e7), st.floats(-1e3, 1e3)), min_size=1, max_size=60)


@given(st.lists(points, min_size=1, max_size=4))
def test_mean_lies_between_lowest_and_highest_seed(seeds: list[list[tuple[float, float]]]) -> None:
    curve = average("v", "m", seeds)
    assert curve is not None
    rounding = 1e-9 * 1e3  # sums of at most 60 values of size 1e3 in double precision
    for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True):
        assert low - rounding <= mean <= high + rounding
