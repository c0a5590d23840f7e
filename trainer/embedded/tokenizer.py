"""Chat tokenizers: text to token ids and back, with the checkpoint's own chat template.

A policy's tokenizer is read from ``tokenizer.json`` and ``tokenizer_config.json`` (plus
``chat_template.jinja`` where there is one), without transformers: the import would cost seconds in
every worker. The prompt ids equal those of ``transformers.AutoTokenizer.apply_chat_template``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from trainer.types import InputError, Message

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
# One marker per turn keeps prompts short: the next marker ends a turn, and only the assistant, who
# has to say by itself that it is done, writes an end token.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# For base models, which come without a template. It is written into every checkpoint saved from
# them, so that what was trained is what is served.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
)
# A word or a symbol takes its leading space along; digits and white space stand alone, so that a
# number is read digit by digit wherever it occurs.
PIECES = r" ?\p{L}+| ?[^\s\p{L}\p{N}]|\p{N}|\s"


@dataclass(frozen=True)
class ChatTokenizer:
    """A ``tokenizers.Tokenizer`` with a chat template; ``config`` is ``tokenizer_config.json``."""

    backend: Tokenizer
    template: str
    config: dict[str, Any]

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as the chat template writes it. Raises InputError where the template refuses it."""
        try:
            return _compile(self.template).render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._specials,
            )
        except jinja2.TemplateError as error:
            raise InputError(f"chat template refuses a conversation of roles {[m.role for m in messages]}: {error}; "
                             "use a template that allows them") from error  # fmt: skip

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Prompt ids of a conversation, up to and with the marker at which the assistant starts."""
        return self.encode(self.render(messages))

    def encode_observation(self, text: str) -> list[int]:
        """Ids that continue an episode after a finished assistant turn (its end token included):
        ``text`` as a user turn and the marker of the next assistant turn.

        Taken from the template as the difference of two renderings, so it holds for any template
        that writes turns one after the other.
        """
        opening = [Message(role="user", content="?"), Message(role="assistant", content="!")]
        before = self.render(opening, add_generation_prompt=False)
        after = self.render([*opening, Message(role="user", content=text)])
        finished = before.rfind(self._eos)
        if finished < 0 or not after.startswith(before[: finished + len(self._eos)]):
            raise InputError(f"chat template does not end assistant turns with the end token {self._eos!r}: "
                             "multi-turn domains need that; use such a template")  # fmt: skip
        return self.encode(after[finished + len(self._eos) :])

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; a model may have more rows than that."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def eos_id(self) -> int:
        """The token that ends an assistant turn."""
        return int(self.backend.token_to_id(self._eos) or 0)

    @cached_property
    def pad_id(self) -> int:
        """The padding token; the end token where the tokenizer has none."""
        found = self.backend.token_to_id(self._specials.get("pad_token", self._eos))
        return self.eos_id if found is None else int(found)

    @property
    def _eos(self) -> str:
        return self._specials["eos_token"]

    @cached_property
    def _specials(self) -> dict[str, str]:
        return special_tokens(self.config)


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """``eos_token`` and its like, by name, from a tokenizer config (plain or as AddedToken records)."""
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    # As transformers renders it, except that the clock (strftime_now) is out of reach: a prompt
    # must not depend on the day.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(template)


def load_tokenizer(directory: Path) -> ChatTokenizer:
    """The tokenizer of a checkpoint directory.

    A directory without a chat template (a base model) gets PLAIN_TEMPLATE. Raises InputError for
    a missing or damaged file, an unknown end token, or a template that does not parse.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: missing; export the checkpoint with its fast tokenizer (tokenizer.json)")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise InputError(f"{path}: not a tokenizer ({_one_line(error)}); export it again") from error
    config = _read_config(directory / "tokenizer_config.json")
    template_file = directory / "chat_template.jinja"
    template = template_file.read_text("utf-8") if template_file.is_file() else _template_of(config)
    eos = special_tokens(config).get("eos_token")
    if eos is None or backend.token_to_id(eos) is None:
        raise InputError(f"{directory / 'tokenizer_config.json'}: eos_token {eos!r} is not in tokenizer.json; "
                         "name the token that ends an assistant turn")  # fmt: skip
    try:
        _compile(template)
    except jinja2.TemplateError as error:
        raise InputError(f"{directory}: chat_template does not parse ({_one_line(error)}); repair it") from error
    return ChatTokenizer(backend, template, config)


def save_tokenizer(tokenizer: ChatTokenizer, directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (the chat template inside)."""
    config = {**tokenizer.config, "chat_template": tokenizer.template}
    (directory / "tokenizer.json").write_text(tokenizer.backend.to_str(pretty=True), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def build_tokenizer(corpus: Iterable[str], max_words: int = 100, min_count: int = 8) -> Tokenizer:
    """A small byte-level tokenizer for ``corpus``: 256 bytes, the markers of CHAT_TEMPLATE, and the
    ``max_words`` most frequent pieces that occur at least ``min_count`` times.

    A piece (see PIECES) in the vocabulary is one token, any other is spelled in bytes, so every text
    round-trips. There are no merges: BPE with ``ignore_merges`` looks pieces up whole, which spends
    no vocabulary on the halves of words.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted((piece for piece, n in counts.items() if len(piece) > 1 and n >= min_count),
                      key=lambda piece: (-counts[piece], piece))  # fmt: skip
    markers = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    pieces = [*markers, *sorted(pre_tokenizers.ByteLevel.alphabet()), *frequent[:max_words]]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], ignore_merges=True))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(markers)
    return backend


def chat_tokenizer(backend: Tokenizer, max_length: int) -> ChatTokenizer:
    """A tokenizer from ``build_tokenizer`` with its template and a config that transformers reads."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    return ChatTokenizer(backend, CHAT_TEMPLATE, config)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; export the checkpoint with its tokenizer") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({_one_line(error)}); export the tokenizer again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; export the tokenizer again")
    return config


def _template_of(config: dict[str, Any]) -> str:
    found = config.get("chat_template")
    if isinstance(found, list):  # several named templates
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    return found if isinstance(found, str) else PLAIN_TEMPLATE


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
