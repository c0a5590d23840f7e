from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.embedded.tokenizer import (
    PLAIN_TEMPLATE,
    ROLES,
    ChatTokenizer,
    build_tokenizer,
    chat_tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from trainer.types import InputError, Message

CORPUS = ["compute 12 + (34-5) = ?", "what is 7 * 8 ?"] * 10
CHAT = chat_tokenizer(build_tokenizer(CORPUS), 128)
TALK = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="compute 12 + 7"),
    Message(role="assistant", content="#19"),
    Message(role="user", content="what is 7 * 8 ?"),
]


def pieces(text: str) -> list[str]:
    return [CHAT.decode([i]) for i in CHAT.encode(text)]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])).filter(lambda text: "<|" not in text))
def test_any_text_round_trips(text: str) -> None:
    assert CHAT.decode(CHAT.encode(text)) == text


def test_digits_stand_alone_and_frequent_words_are_one_token() -> None:
    assert pieces("compute 123+45") == ["compute", " ", "1", "2", "3", "+", "4", "5"]
    assert pieces(" is (7") == [" is", " (", "7"]
    assert len(CHAT.encode("walrus")) == 6  # not in the corpus: spelled


def test_rare_words_and_words_beyond_the_limit_are_spelled() -> None:
    corpus = ["often often"] * 5 + ["rare"]
    assert build_tokenizer(corpus, min_count=2).token_to_id("rare") is None
    one = build_tokenizer(corpus, max_words=1, min_count=2)
    assert one.get_vocab_size() == build_tokenizer([], max_words=0).get_vocab_size() + 1


def test_building_is_deterministic() -> None:
    assert build_tokenizer(CORPUS).to_str() == build_tokenizer(reversed(CORPUS)).to_str()


def test_a_turn_costs_one_marker_and_only_replies_end() -> None:
    ids = CHAT.encode_prompt(TALK)
    markers = [CHAT.backend.token_to_id(f"<|{role}|>") for role in ROLES]
    assert sum(i in markers for i in ids) == len(TALK) + 1
    assert ids.count(CHAT.eos_id) == 1
    assert ids[-1] == CHAT.backend.token_to_id("<|assistant|>")
    assert CHAT.pad_id not in ids


def test_observation_continues_the_conversation() -> None:
    first = [Message(role="user", content="open a.py")]
    reply = CHAT.encode("no such file?")
    ids = [*CHAT.encode_prompt(first), *reply, CHAT.eos_id, *CHAT.encode_observation("it is b.py")]
    talk = [*first, Message(role="assistant", content="no such file?"), Message(role="user", content="it is b.py")]
    assert ids == CHAT.encode_prompt(talk)


CHATML = (
    "{%- for m in messages -%}{{ '<|user|>' + m.role + '\n' + m.content | trim + '<|end|>' + '\n' }}"
    "{%- if loop.index > 99 %}{% break %}{% endif %}{%- endfor %}\n"
    "    {%- if add_generation_prompt %}{{ '<|user|>assistant\n' }}{%- endif %}"
)


@pytest.mark.parametrize("template", [CHAT.template, PLAIN_TEMPLATE, CHATML])
def test_prompt_ids_equal_those_of_transformers(template: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(ChatTokenizer(CHAT.backend, template, CHAT.config), tmp_path)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    messages = [message.model_dump() for message in TALK]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ours.encode_prompt(TALK) == expected
    assert (ours.eos_id, ours.pad_id) == (theirs.eos_token_id, theirs.pad_token_id)
    assert ours.vocab_size == len(theirs)


def test_observation_of_a_template_that_writes_after_the_end_token() -> None:
    chatml = ChatTokenizer(CHAT.backend, CHATML, CHAT.config)
    assert chatml.encode_observation("x") == CHAT.encode("\n<|user|>user\nx<|end|>\n<|user|>assistant\n")


def test_observation_needs_turns_that_end_with_the_end_token() -> None:
    endless = ChatTokenizer(CHAT.backend, "{% for m in messages %}{{ m.content }}{% endfor %}", CHAT.config)
    with pytest.raises(InputError, match="end token"):
        endless.encode_observation("x")


def test_template_sources(tmp_path: Path) -> None:
    save_tokenizer(CHAT, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())

    def template_with(chat_template: Any) -> str:
        path.write_text(json.dumps({**config, "chat_template": chat_template}))
        return load_tokenizer(tmp_path).template

    assert template_with([{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]) == "D"
    assert template_with(None) == PLAIN_TEMPLATE
    (tmp_path / "chat_template.jinja").write_text("J")
    assert template_with("C") == "J"


def test_special_tokens_may_be_records_and_padding_may_be_missing(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|end|>", "lstrip": False}}
    save_tokenizer(ChatTokenizer(CHAT.backend, CHAT.template, config), tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_id == loaded.pad_id == CHAT.eos_id


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def with_text(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (without("tokenizer.json"), r"tokenizer\.json: missing; export"),
        (with_text("tokenizer.json", "{}"), r"tokenizer\.json: not a tokenizer .*; export"),
        (without("tokenizer_config.json"), r"tokenizer_config\.json: missing; export"),
        (with_text("tokenizer_config.json", "{"), r"tokenizer_config\.json: not JSON"),
        (with_text("tokenizer_config.json", "[]"), r"tokenizer_config\.json: not a JSON object"),
        (with_text("tokenizer_config.json", '{"eos_token": "<eos>"}'), r"eos_token '<eos>' is not in"),
        (with_text("chat_template.jinja", "{% for %}"), r"chat_template does not parse"),
    ],
)
def test_damage_is_one_line(damage: Callable[[Path], object], line: str, tmp_path: Path) -> None:
    save_tokenizer(CHAT, tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=line) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_template_that_refuses_the_roles_is_named() -> None:
    picky = ChatTokenizer(CHAT.backend, "{{ raise_exception('no system role') }}", CHAT.config)
    with pytest.raises(InputError, match=r"roles \['system'.*no system role"):
        picky.encode_prompt(TALK)


def test_a_template_cannot_reach_python() -> None:
    escape = ChatTokenizer(CHAT.backend, "{{ messages.__class__.__mro__ }}", CHAT.config)
    with pytest.raises(InputError):
        escape.encode_prompt(TALK)
