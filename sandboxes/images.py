"""The image of the Docker backend: python -m sandboxes.images build|show.

Built from this machine's own files (sandboxes.rootfs) and handed to the engine directly, so no registry and
no network are needed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandboxes.types import ENVIRONMENT, SandboxFailure, SandboxUnavailable

DEFAULT_IMAGE = "evotrainer-sandbox"
LABEL = "evotrainer.rootfs"
BUILD = "python -m sandboxes.images build"


def image_name() -> str:
    """The image to run: EVOTRAINER_SANDBOX_IMAGE, which may be any with sh, coreutils and tar, or our own."""
    return os.environ.get("EVOTRAINER_SANDBOX_IMAGE") or DEFAULT_IMAGE


class _Sink(io.BytesIO):
    """What tarfile wrote since the last look."""

    def take(self) -> bytes:
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data


def archive(root: Path) -> Iterator[bytes]:
    """``root`` as a tar stream that depends on its content only: sorted, everything root's. One file at a time in
    memory."""
    sink = _Sink()
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = int(info.mtime) if info.isreg() else 0  # files keep theirs: bytecode is checked against it
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
            if sink.tell():
                yield sink.take()
    yield sink.take()


def build(name: str, *, anew: bool = False) -> str:
    """Build the image and name it ``name``; the id. Replaces, and removes, what had the name before; where that is made of
    the same files it stays, unless ``anew``.

    Raises SandboxUnavailable (no engine, no way to prepare the files) or SandboxFailure.
    """
    from docker.errors import APIError

    from sandboxes.docker_engine import Engine
    from sandboxes.rootfs import ensure

    engine = Engine()
    root = ensure()
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    changes = [*(f"ENV {key}={value}" for key, value in ENVIRONMENT.items()), "WORKDIR /task", 'CMD ["sh"]']
    made_of = f"{root.parent.name}-{hashlib.sha256(repr(changes).encode()).hexdigest()[:8]}"
    changes.append(f"LABEL {LABEL}={made_of}")
    with engine.doing("build the image"):
        before = engine.image(name)
        if before and _made_of(before) == made_of and not anew:
            return str(before["Id"])
        answer = engine.api.import_image(
            src=archive(root), stream_src=True, repository=repository, tag=tag, changes=changes
        )
        last = json.loads(str(answer).strip().splitlines()[-1])
        if "error" in last:
            raise SandboxFailure(f"docker: cannot build the image: {last['error']}")
        built = str(last["status"])
        if before and before["Id"] != built:
            with suppress(APIError):  # a sandbox that still runs keeps it, another name may too
                engine.api.remove_image(before["Id"])
        return built


def show(name: str) -> str:
    """What the engine holds under ``name``, in one line. Raises SandboxUnavailable where it holds nothing."""
    from sandboxes.docker_engine import Engine

    engine = Engine()
    with engine.doing("look for the image"):
        image = engine.image(name)
    if image is None:
        raise SandboxUnavailable(missing(name))
    source = _made_of(image) or "not built by us"
    return f"{name}  {image['Id']}  {image['Size'] / 1e6:.0f} MB  {image['Created'][:19]}  {source}"


def _made_of(image: Mapping[str, Any]) -> str:
    return str(((image.get("Config") or {}).get("Labels") or {}).get(LABEL, ""))


def missing(name: str) -> str:
    """The line for an image the engine does not have; it is never pulled."""
    remedy = BUILD if name == DEFAULT_IMAGE else f"{BUILD}, or unset EVOTRAINER_SANDBOX_IMAGE"
    return f"docker: image {name!r} is missing; build it: {remedy}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sandboxes.images",
        description="The image of the Docker backend, made of this machine's own files; no registry is asked.",
        epilog="DOCKER_HOST names the engine, EVOTRAINER_SANDBOX_IMAGE another image than " + DEFAULT_IMAGE + ".",
    )
    parser.add_argument("command", choices=("build", "show"), help="build the image, or show what is there")
    parser.add_argument("--anew", action="store_true", help="build even where the image is made of the same files")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            build(image_name(), anew=options.anew)
        print(show(image_name()))
    except (SandboxUnavailable, SandboxFailure) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
