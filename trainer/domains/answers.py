"""Strict extraction of final answers, and cheap numbers about a reply."""

from __future__ import annotations

import re
from itertools import pairwise

MARKER = "#"
# The whole reply must fit: one marker, an answer without spaces, and nothing after it.
_MARKED = re.compile(r"[^#]*#([^#\s]+)")


def marked_answer(reply: str) -> str | None:
    """The answer of a reply that ends with ``#<answer>``, else None.

    The convention of GSM8K (Cobbe et al. 2021, ``#### <answer>``), shortened to one character for
    digit-level policies. A second marker or any text after the answer, a space included, is no answer:
    what could be read in two ways is not scored.
    """
    match = _MARKED.fullmatch(reply)
    return match[1] if match else None


def final_answer(reply: str) -> str | None:
    """The answer of a reply in one of the forms ``#x``, ``#### x`` and ``\\boxed{x}``, else None.

    For task files and chat models. Exactly one form, once: after ``#x`` and ``#### x`` nothing may
    follow, after ``\\boxed{x}`` closing words may.
    """
    text = reply.strip()
    found = [answer for answer in (_boxed(text), _quadruple(text), marked_answer(text)) if answer is not None]
    return found[0] if len(found) == 1 else None


def normalized(answer: str) -> str:
    """An answer without dollar signs around it and commas between thousands; nothing else is forgiven."""
    bare = answer.strip().strip("$").strip()
    return bare.replace(",", "") if re.fullmatch(r"-?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?", bare) else bare


def _quadruple(text: str) -> str | None:
    head, marker, tail = text.rpartition("####")
    answer = tail.strip()
    return answer if marker and answer and MARKER not in head + answer and "\n" not in answer else None


def _boxed(text: str) -> str | None:
    """What stands between the braces of the only ``\\boxed{``; None if they stay open or hold nothing."""
    _, box, rest = text.partition("\\boxed{")
    if not box or box in rest:
        return None
    depth = 1
    for i, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[:i].strip() or None
    return None


REPLY_FEATURES = ("format_ok", "answer_length", "reply_characters", "steps", "repeats")


def reply_features(reply: str, answer: str | None) -> dict[str, float]:
    """Numbers about a reply, keys REPLY_FEATURES.

    ``format_ok`` 1 if an answer could be extracted; ``answer_length`` and ``reply_characters`` in
    characters; ``steps`` words before the last one, which is where the answer stands; ``repeats`` share of word bigrams that occurred before (0 none, towards 1 a loop).
    """
    words = reply.split()
    bigrams = list(pairwise(words))
    return {
        "format_ok": float(answer is not None),
        "answer_length": float(len(answer or "")),
        "reply_characters": float(len(reply)),
        "steps": float(max(0, len(words) - 1)),
        "repeats": 1 - len(set(bigrams)) / len(bigrams) if bigrams else 0.0,
    }
