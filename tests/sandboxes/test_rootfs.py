"""The system that programs see: whole or rebuilt, and nothing of ours in it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes import rootfs
from sandboxes.types import SandboxUnavailable


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rootfs.ensure_in(tmp_path_factory.mktemp("cache"))


def again(root: Path) -> Path:
    return rootfs.ensure_in(root.parents[1])


def everything(root: Path) -> list[Path]:
    return [Path(parent, name) for parent, folders, files in os.walk(root) for name in [*folders, *files]]


def test_it_is_readable_by_all_writable_by_none_and_has_no_setuid(built: Path) -> None:
    for path in everything(built):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            continue
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        assert mode & 0o444 == 0o444 and not mode & 0o6000, path
        assert not mode & 0o022 or path.name in rootfs.OPEN_FOLDERS, path


def test_links_stay_inside_and_lead_somewhere(built: Path) -> None:
    for path in everything(built):
        if path.is_symlink():
            target = os.readlink(path)  # noqa: PTH115
            inside = built / target[1:] if target.startswith("/") else path.parent / target
            assert inside.resolve().is_relative_to(built) and inside.exists(), (path, target)


def test_it_holds_python_and_tools_and_nothing_installed(built: Path) -> None:
    names = {str(path.relative_to(built)) for path in everything(built)}
    library = f"usr/local/{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
    assert {"bin", "tmp", "task", "proc", "dev", "etc/passwd", "usr/bin/sh", "usr/bin/cat", f"{library}/os.py"} <= names
    unwanted = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "turtledemo", "turtle.py")
    assert names.isdisjoint({f"{library}/{name}" for name in unwanted} | {"etc/shadow"})
    for name in ("home", "root", "var", "opt", "srv", "mnt"):
        assert name not in names


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root; the sandboxes' tests run it for everyone")
def test_python_runs_in_it_alone(built: Path) -> None:
    code = """
import asyncio, bz2, csv, ctypes, decimal, hashlib, json, lzma, multiprocessing, sqlite3, ssl, sys, unittest, zlib
print(sys.prefix, [p for p in sys.path if not p.startswith("/usr/local/")], len(json.__cached__) > 0)
"""
    done = subprocess.run(
        [rootfs.PYTHON, "-I", "-c", code],
        capture_output=True, text=True, check=False, preexec_fn=lambda: os.chroot(built),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "/usr/local [] True\n", "")


def test_a_whole_one_is_kept(built: Path) -> None:
    before = built.stat().st_ino
    assert again(built) == built and built.stat().st_ino == before


@pytest.mark.parametrize("damage", ["missing", "shorter", "other", "extra", "mode", "link", "manifest", "half"])
def test_a_damaged_one_is_rebuilt(built: Path, damage: str) -> None:
    cat, before = built / "usr/bin/cat", built.stat().st_ino
    if damage == "missing":
        cat.unlink()
    elif damage == "shorter":
        os.truncate(cat, 100)
    elif damage == "other":
        cat.write_bytes(b"\0" * cat.stat().st_size)
    elif damage == "extra":
        (built / "usr/local/bin/sitecustomize.py").write_text("raise SystemExit")
    elif damage == "mode":
        cat.chmod(0o644)
    elif damage == "link":
        (built / "usr/local/bin/python").unlink()
        (built / "usr/local/bin/python").symlink_to("/bin/sh")
    elif damage == "manifest":
        (built.parent / "manifest.json").write_text("{")
    else:
        shutil.rmtree(built / "usr/lib")
    assert again(built) == built
    assert built.stat().st_ino != before
    assert cat.read_bytes() == Path(shutil.which("cat") or "").read_bytes()
    assert sorted(p.name for p in built.parents[1].iterdir()) == sorted([".lock", built.parent.name])


def test_what_a_killed_build_left_is_swept(built: Path) -> None:
    leftover = built.parents[1] / ".build-killed"
    (leftover / "root").mkdir(parents=True)
    (built / "usr/bin/cat").unlink()
    again(built)
    assert not leftover.exists()


def test_a_place_that_cannot_hold_it_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SandboxUnavailable) as caught:
        rootfs.ensure_in(file / "cache")
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_root_does_not_hide_it_in_its_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(closed / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert rootfs.cache_folder() == Path("/var/cache/evotrainer")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rootfs.cache_folder() == closed / "cache/evotrainer"
