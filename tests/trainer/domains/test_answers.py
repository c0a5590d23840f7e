import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.domains.answers import REPLY_FEATURES, final_answer, marked_answer, normalized, reply_features

ANSWERS = st.from_regex(r"-?[0-9]{1,4}", fullmatch=True)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("#6", "6"),
        ("4+7=11 11-5=6 #6", "6"),
        ("#-12", "-12"),
        ("#3-4i", "3-4i"),
        ("6", None),
        ("#", None),
        ("# 6", None),
        ("#6 ", None),
        ("#6\n", None),
        ("#6 #6", None),
        ("#5#6", None),
        ("##6", None),
        ("#6 is it", None),
        ("", None),
    ],
)
def test_marked_answer(reply: str, answer: str | None) -> None:
    assert marked_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("so it is\n#### 72", "72"),
        ("so #72", "72"),
        ("thus \\boxed{72}.", "72"),
        ("thus \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("# Solution\nthus \\boxed{72}", "72"),
        ("\\boxed{72} or \\boxed{73}", None),
        ("\\boxed{72} #### 72", None),
        ("\\boxed{72", None),
        ("\\boxed{}", None),
        ("#### 72 #### 73", None),
        ("#### 72\nor 73", None),
        ("##### 72", None),
        ("72", None),
    ],
)
def test_final_answer(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


def test_normalized_forgives_dollars_and_thousands_only() -> None:
    assert normalized(" $1,234.5$ ") == "1234.5"
    assert normalized("1,2") == "1,2"
    assert normalized("07") == "07"
    assert normalized("7.0") == "7.0"


@given(st.text(alphabet=st.characters(exclude_characters="#")), ANSWERS, st.text(min_size=1))
def test_only_the_end_of_a_reply_is_an_answer(work: str, answer: str, after: str) -> None:
    assert marked_answer(f"{work}#{answer}") == answer
    assert marked_answer(f"{work}#{answer}{after}") != answer


@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*=# \n\\boxed{}")))
def test_any_text_is_read(reply: str) -> None:
    features = reply_features(reply, marked_answer(reply))
    assert tuple(features) == REPLY_FEATURES
    assert 0 <= features["steps"] <= len(reply)
    assert 0 <= features["repeats"] < 1
    final = final_answer(reply)
    assert final is None or final in reply


def test_features_count_steps_and_repeats() -> None:
    features = reply_features("4+7=11 11-5=7 -3*-2=6 #6", "6")
    assert (features["format_ok"], features["answer_length"]) == (1.0, 1.0)
    assert features["steps"] == 3.0
    assert features["repeats"] == 0.0
    assert reply_features("a b a b a b", None)["repeats"] == pytest.approx(3 / 5)
