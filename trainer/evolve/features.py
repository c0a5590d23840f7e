"""What a rule may look at: numbers about one rollout, each an SQL expression over the view ``late``.

Nothing that restates the labels is here: not the outcome, nor what tests of a program passed, nor score and advantage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainer.types import ROLLOUT_COLUMNS

WORDS = r"regexp_extract_all(response, '\S+')"
LINES = "string_split(response, chr(10))"

ANY_DOMAIN: Mapping[str, str] = {
    "length_share": "response_length / max_response_length",
    "characters": "length(response)",
    "words": f"len({WORDS})",
    "repeated_words": f"1 - list_unique({WORDS}) / greatest(1, len({WORDS}))",
    "lines": f"len({LINES})",
    "repeated_lines": f"1 - list_unique({LINES}) / len({LINES})",
    "digits_share": "length(regexp_replace(response, '[^0-9]', '', 'g')) / greatest(1, length(response))",
    "letters_share": "length(regexp_replace(response, '[^a-zA-Z]', '', 'g')) / greatest(1, length(response))",
    "symbols_share": r"length(regexp_replace(response, '[a-zA-Z0-9\s]', '', 'g')) / greatest(1, length(response))",
    "distinct_characters": "list_unique(string_split(response, '')) / greatest(1, length(response))",
    "answered": "(extracted IS NOT NULL)::INT",
    "answer_position": "CASE WHEN extracted IS NULL THEN 1 ELSE instr(response, extracted) / greatest(1, length(response)) END",
    "answer_characters": "coalesce(length(extracted), 0)",
    "answer_in_prompt": "coalesce(contains(prompt, extracted), false)::INT",
    "prompt_words": rf"len(list_intersect({WORDS}, regexp_extract_all(prompt, '\S+'))) / greatest(1, len({WORDS}))",
    "reply_in_group": "count(*) OVER (PARTITION BY seed, step, group_id, response) / count(*) OVER (PARTITION BY seed, step, group_id)",
    "answer_in_group": "count(*) OVER (PARTITION BY seed, step, group_id, extracted) / count(*) OVER (PARTITION BY seed, step, group_id)",
    "common_reply": "count(*) OVER (PARTITION BY seed, response) / count(*) OVER (PARTITION BY seed)",
    "common_answer": "count(*) OVER (PARTITION BY seed, extracted) / count(*) OVER (PARTITION BY seed)",
    "common_opening": "count(*) OVER (PARTITION BY seed, left(response, 4)) / count(*) OVER (PARTITION BY seed)",
    "truncated": "truncated::INT",
    "turns": "turns",
    "level": "level",
    "mean_logprob": "mean_logprob",
    "entropy": "entropy",
}  # fmt: skip

NEVER = frozenset(
    {
        "tests_passed",
        "visible_passed",
        "runtime_error",
        "timed_out",
        "term_outcome",
        "term_partial",
        "progress",
        "quarter",
    }
)
"""Columns in which the verifier's word has a part, and those that say when a rollout was sampled, not what it is."""


def features(columns: Collection[str], *, terms: bool = True) -> dict[str, str]:
    """Feature name to SQL expression, for a rollout table with these columns: those of any domain, then the domain's own
    columns and, with ``terms``, ``term_<name>`` of each reward term but the outcome's. A term may be a function of the
    outcome: where that gives the labels, terms must not take part."""
    own = [c for c in columns if c not in ROLLOUT_COLUMNS and c not in NEVER]
    own = [c for c in own if terms or not c.startswith("term_")]
    return {**ANY_DOMAIN, **{c: f'"{c}"' for c in sorted(own) if c.isidentifier() and c not in ANY_DOMAIN}}
