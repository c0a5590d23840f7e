"""The repository's shape: names, import direction, light packages, small files, sound configuration."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("graph", "agents", "trainer", "skills_db", "sandboxes", "benchmarks", "tests")
HEAVY = (
    "torch", "ray", "verl", "vllm", "docker", "langgraph", "transformers", "duckdb", "pyarrow", "scipy", "reasoning_gym",
)  # fmt: skip
MAX_LINES = 400
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def python(code: str, *args: str) -> str:
    """Standard output of ``code`` in a fresh interpreter at the repository root."""
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(cache_dir=None))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_names_resolve_inside_the_repository(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin) == ROOT / package / "__init__.py"


def test_no_installed_distribution_claims_our_names() -> None:
    # Only what is installed counts: an editable install leaves an egg-info in the root that lists our own sources.
    installed = distributions(path=[*{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}])
    tops = [(dist, {file.parts[0].removesuffix(".py") for file in dist.files or ()}) for dist in installed]
    assert len(tops) > 50
    assert [(dist.name, *names.intersection(PACKAGES)) for dist, names in tops if names & set(PACKAGES)] == []


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for path in SOURCES}
    # Folders between a module and its package root count too: a gap would make a namespace package.
    folders |= {parent for folder in folders for parent in folder.parents if parent != ROOT and ROOT in parent.parents}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_importing_packages_loads_nothing_heavy() -> None:
    names = [".".join(path.parent.relative_to(ROOT).parts) for path in SOURCES if path.name == "__init__.py"]
    code = "import importlib, json, sys; [importlib.import_module(n) for n in sys.argv[1:]]; print(json.dumps([*sys.modules]))"
    loaded = {name.partition(".")[0] for name in json.loads(python(code, *names))}
    assert set(PACKAGES) <= loaded
    assert loaded.isdisjoint(HEAVY)


def test_files_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize(
    "path", sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.toml")), ids=lambda p: p.name
)
def test_shipped_toml_parses(path: Path) -> None:
    assert tomllib.loads(path.read_text(encoding="utf-8"))
