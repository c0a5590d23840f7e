from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.domains.code.features import features
from trainer.domains.code.types import CaseVerdict, Grade
from trainer.reward import check_term, reward_view, score_rollouts
from trainer.sql import locked_connection
from trainer.types import REWARD_COLUMNS, InputError, RewardTerm

from .rollout_tables import healthy, table


def term(sql: str, name: str = "t") -> RewardTerm:
    return RewardTerm(name=name, description="", sql=sql)


def rows() -> pa.Table:
    return table(healthy()).select([*REWARD_COLUMNS, "format_ok", "repeats"])


@pytest.mark.parametrize(
    "sql",
    [
        "outcome",
        "0.25",
        "NOT truncated",
        "OUTCOME - 0.5 * Format_OK -- a comment",
        "outcome * (1 - response_length / max_response_length)",
        "CASE WHEN response LIKE '%#%' THEN 1 ELSE 0 END",
        "coalesce(try_cast(extracted AS DOUBLE), 0)",
        "greatest(-1, least(0, outcome))",
        "outcome::DECIMAL(4, 2)",
        "regexp_matches(response, '[0-9]+')",
        "list_sum(list_transform(string_split(response, ' '), lambda word: length(word)))",
    ],
)
def test_scalar_expressions_are_accepted(sql: str) -> None:
    check_term(term(sql), ["format_ok"])
    values, _ = score_rollouts(rows(), {"t": term(sql)}, {})
    assert values["t"].shape == (rows().num_rows,)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "empty"),
        ("outcom", "did you mean 'outcome'"),
        ("score", "unknown column 'score'"),
        ("other.outcome", "unknown column 'other'"),
        ("response", "VARCHAR, not a number"),
        ("(1, 2)", "not a number"),
        ("outcome, 1", "not a number"),
        ("1) , (2", "expression"),
        ("1; SELECT 2", "syntax error"),
        ("1) AS x FROM rollouts; DROP TABLE rollouts; SELECT (1", "syntax error"),
        ("1) FROM rollouts UNION ALL SELECT (2", "syntax error"),
        ("(SELECT 1)", "subquery"),
        ("EXISTS (FROM range(3))", "subquery"),
        ("sum(outcome)", "sum()"),
        ("count(*)", "count_star"),
        ("row_number() OVER ()", "window"),
        ("*", "star"),
        ("COLUMNS(*)", "star"),
        ("$1", "parameter"),
        ("unnest([1, 2])", "unnest"),
        ("random()", "random() is volatile"),
        ("epoch(now())", "now() is volatile"),
        ("getenv('HOME')", "getenv()"),
        ("read_csv('/etc/passwd')", "read_csv()"),
        ("length(read_text('/etc/passwd'))", "read_text()"),
        ("COPY rollouts TO 'x'", "syntax error"),
        ("PRAGMA version", "syntax error"),
        ("ATTACH 'x.db'", "ATTACH"),
        ("outcome ||", "syntax error"),
        ("lenght(response)", "lenght()"),
        ("length(outcome, 2, 3)", "argument types"),
    ],
)
def test_anything_else_is_refused_in_one_line(sql: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_term(term(sql, "bad"), ["format_ok"])
    text = str(caught.value)
    assert text.startswith("reward/bad.toml: sql: ") and message.lower() in text.lower() and "\n" not in text


def test_files_stay_out_of_reach_even_where_the_check_would_pass() -> None:
    for query in (
        "SELECT * FROM read_text('/etc/hostname')",
        "SET enable_external_access = true",
        "COPY (SELECT 1) TO 'x'",
    ):
        with pytest.raises(Exception, match=r"Permission|lock|disabled"):
            locked_connection().execute(query).fetchall()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 64)), min_size=1, max_size=50),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_score_is_the_weighted_sum_in_the_order_of_the_rows(
    sampled: list[tuple[float, int]], first: float, second: float
) -> None:
    outcome, length = (np.array(x) for x in zip(*sampled, strict=True))
    given_rows = pa.table({"outcome": outcome.astype(float), "response_length": length})
    terms = {"a": term("outcome", "a"), "b": term("response_length / 64", "b"), "unused": term("1", "unused")}
    values, score = score_rollouts(given_rows, terms, {"a": first, "b": second})
    assert list(values) == ["a", "b", "unused"]
    np.testing.assert_array_equal(values["a"], outcome)
    np.testing.assert_array_equal(score, first * values["a"] + second * values["b"])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("CASE WHEN response_length > 18 THEN 1 END", "NULL for"),
        ("outcome / (outcome - outcome)", "rollouts"),
        ("ln(0 * outcome)", "NaN or infinity"),
        ("CAST(response AS DOUBLE)", "Could not convert"),
    ],
)
def test_a_term_without_a_number_is_named(sql: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^reward/broken\.toml: ") as caught:
        score_rollouts(rows(), {"fine": term("outcome", "fine"), "broken": term(sql, "broken")}, {"fine": 1.0})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_weight_without_a_term_is_refused() -> None:
    with pytest.raises(InputError, match=r"reward\.weights\.outcom: .*did you mean 'outcome'"):
        score_rollouts(rows(), {"outcome": term("outcome", "outcome")}, {"outcom": 1.0})


VERDICTS = st.sampled_from(get_args(CaseVerdict))


@given(st.lists(VERDICTS, min_size=1, max_size=3), st.lists(VERDICTS, min_size=2, max_size=2), st.data())
def test_with_visible_tests_the_view_is_the_same_whatever_hidden_ones_say(
    visible: list[CaseVerdict], hidden: list[CaseVerdict], data: st.DataObject
) -> None:
    """Over the code domain's own features: a new one that hidden tests have a part in must be named in HIDDEN_TESTS_KNOW."""

    def view(verdicts: list[CaseVerdict], tests: Literal["hidden", "visible"]) -> dict[str, Any]:
        found = Grade(kind="exit", visible=tuple(visible), hidden=tuple(verdicts))
        columns = {name: [value] for name, value in features("a reply", "def f(x): return x", found).items()}
        given_rows = pa.table({**columns, "outcome": [found.outcome], "visible": [found.weak]})
        seen: dict[str, Any] = reward_view(given_rows, tests).to_pydict()
        return seen

    other = data.draw(st.lists(VERDICTS, min_size=2, max_size=2))
    assert view(hidden, "visible") == view(other, "visible")
    assert view(["pass"], "hidden") != view(["wrong"], "hidden")
    assert view(hidden, "visible")["outcome"] == [float(set(visible) == {"pass"})]


def test_sql_that_reads_what_only_hidden_tests_know_is_told_so() -> None:
    known = rows().append_column("visible", rows()["outcome"]).append_column("timed_out", rows()["outcome"])
    assert score_rollouts(reward_view(known, "hidden"), {"t": term("timed_out")}, {})[0]["t"].any()
    with pytest.raises(InputError, match=r"^reward/t\.toml: sql: gives NULL for 1280 of 1280"):
        score_rollouts(reward_view(known, "visible"), {"t": term("timed_out")}, {})


def test_no_terms_score_zero() -> None:
    values, score = score_rollouts(rows(), {}, {})
    assert values == {} and not score.any()
