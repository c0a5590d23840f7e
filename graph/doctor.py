"""python -m graph.run --doctor: what is installed, and for each missing part what it is for and how to get it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO

from sandboxes.backends import BACKENDS, open_backend
from sandboxes.types import SandboxUnavailable
from trainer.types import Record

REQUIRED = ("torch", "langgraph", "langgraph-checkpoint-sqlite", "pydantic", "duckdb", "pyarrow",
            "reasoning-gym", "tokenizers", "safetensors", "transformers", "rich", "scipy")  # fmt: skip


class Part(Record):
    """One part of the installation."""

    name: str
    state: Literal["ok", "missing", "optional"]
    detail: str
    remedy: str = ""


def examine() -> tuple[Part, ...]:
    """Check every part; no training code is imported."""
    parts = [_python(), *(_package(name) for name in REQUIRED), _program("git", required=True), _cores(), _cache()]
    parts += [
        _optional("langchain-openai", "LLM specialists", "pip install -e '.[llm]'"),
        *(_sandbox(name) for name in BACKENDS),
    ]
    if "OPENAI_API_KEY" not in os.environ:
        parts.append(
            Part(name="OPENAI_API_KEY", state="optional", detail="not set", remedy="only LLM specialists need it")
        )
    return tuple(parts)


def doctor(stream: TextIO, *, as_json: bool) -> int:
    """Print the examination; 1 if a required part is missing."""
    parts = examine()
    if as_json:
        stream.write(json.dumps([p.model_dump() for p in parts], ensure_ascii=False) + "\n")
    else:
        for p in parts:
            remedy = f"  -> {p.remedy}" if p.remedy and p.state != "ok" else ""
            stream.write(f"{p.state:<9}{p.name:<28}{p.detail}{remedy}\n")
    return 1 if any(p.state == "missing" for p in parts) else 0


def _python() -> Part:
    ok = sys.version_info >= (3, 11)
    return Part(
        name="python", state="ok" if ok else "missing", detail=sys.version.split()[0], remedy="use Python 3.11 or newer"
    )


def _package(name: str) -> Part:
    try:
        return Part(name=name, state="ok", detail=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Part(name=name, state="missing", detail="not installed", remedy="make setup")


def _optional(name: str, purpose: str, remedy: str) -> Part:
    part = _package(name)
    return part if part.state == "ok" else Part(name=name, state="optional", detail=f"for {purpose}", remedy=remedy)


def _program(name: str, *, required: bool, remedy: str = "") -> Part:
    path = shutil.which(name)
    if path:
        return Part(name=name, state="ok", detail=path)
    state: Literal["missing", "optional"] = "missing" if required else "optional"
    return Part(name=name, state=state, detail="not found", remedy=remedy or f"install {name}")


def _sandbox(name: str) -> Part:
    """A backend that isolates programs; the reason why it does not work names the remedy."""
    try:
        return Part(name=f"sandbox {name}", state="ok", detail=str(open_backend(name).isolation()))
    except SandboxUnavailable as error:
        return Part(name=f"sandbox {name}", state="optional", detail="for domain code", remedy=str(error))


def _cores() -> Part:
    return Part(name="cores", state="ok", detail=f"{os.cpu_count()}: that many trainings run at once")


def _cache() -> Part:
    from platformdirs import user_cache_path

    path: Path = user_cache_path("evotrainer")
    existing: Sequence[Path] = [p for p in (path, *path.parents) if p.exists()]
    ok = os.access(existing[0], os.W_OK)
    return Part(
        name="cache",
        state="ok" if ok else "missing",
        detail=str(path),
        remedy=f"make {existing[0]} writable or set XDG_CACHE_HOME",
    )
