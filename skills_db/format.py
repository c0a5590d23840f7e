"""SKILL.md and back: YAML frontmatter (name, description, metadata) and a markdown body.

The layout is that of agentskills.io, where metadata maps strings to strings: lists are block texts
with one entry a line, evidence one JSON object a line.
"""

from __future__ import annotations

import json
import re

import yaml
from pydantic import ValidationError

from skills_db.types import Evidence, Skill

MAX_CHARS = 1 << 18
_FENCE = "---\n"
_FOLDED = re.compile("[\r\x85\u2028\u2029]")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, which a person can read and a diff can follow."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # YAML folds Unicode's line breaks like \n unless they are escaped, which only double quotes do.
    style = '"' if _FOLDED.search(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def render(skill: Skill) -> str:
    """The text of the skill's SKILL.md."""
    metadata = {
        "schema-version": str(skill.schema_version),
        "domains": " ".join(skill.domains),
        "origin": skill.origin,
        "trigger": skill.trigger,
        "factor": skill.factor,
        "value": skill.value,
        "preconditions": "\n".join(" ".join(text.split()) for text in skill.preconditions),
        "expected-effect": skill.expected_effect,
        "source": skill.source,
        "wins": str(skill.wins),
        "losses": str(skill.losses),
        "vetoes": "\n".join(skill.vetoes),
        "evidence": "\n".join(json.dumps(e.model_dump(), ensure_ascii=False) for e in skill.evidence),
    }
    head = {
        "name": skill.name,
        "description": skill.description,
        "metadata": {key: value for key, value in metadata.items() if value},
    }
    front = yaml.dump(head, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_FENCE}{front}{_FENCE}\n{skill.body.strip()}\n"


def parse(text: str, folder: str) -> Skill:
    """The skill of a SKILL.md in ``folder``. Raises ValueError with a one-line reason.

    What is derived (domains, wins, losses, vetoes) is for readers and is not read back. Keys that
    other tools put there are left alone.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"longer than {MAX_CHARS} characters")
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    front, fence, body = text.removeprefix(_FENCE).partition(f"\n{_FENCE}")
    if not text.startswith(_FENCE) or not fence:
        raise ValueError("no frontmatter between two lines of ---")
    try:
        head = yaml.safe_load(front)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"frontmatter is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(head, dict):
        raise ValueError("frontmatter is not a mapping")
    if head.get("name") != folder:
        raise ValueError(f"name {str(head.get('name'))[:80]!r} differs from its folder {folder!r}")
    metadata = head.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError("metadata is missing; a skill needs origin, trigger and factor")
    meta = {str(key): "" if value is None else str(value) for key, value in metadata.items()}
    try:
        return Skill.model_validate(
            {
                "schema_version": int(meta.get("schema-version", "1")),
                "name": head["name"],
                "description": head.get("description"),
                "origin": meta.get("origin"),
                "trigger": meta.get("trigger"),
                "factor": meta.get("factor"),
                "value": meta.get("value", ""),
                "preconditions": tuple(line for line in meta.get("preconditions", "").split("\n") if line),
                "expected_effect": meta.get("expected-effect", ""),
                "source": meta.get("source", ""),
                "evidence": tuple(
                    Evidence.model_validate_json(line) for line in meta.get("evidence", "").split("\n") if line.strip()
                ),
                "body": body.strip(),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or first["type"]
        raise ValueError(f"{field}: {' '.join(first['msg'].split())}") from None
