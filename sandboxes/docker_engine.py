"""A Docker engine as we use it: the SDK for questions, connections of our own for streams.

The SDK's streams have no time limit, buffer everything and may lose what arrives together with the answer's
headers, so an upgraded connection is opened here, in a few lines of HTTP.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from sandboxes.docker_streams import Stream
from sandboxes.types import SandboxFailure, SandboxUnavailable

ANSWER_S = 120.0
"""Seconds until an engine that does not answer counts as unreachable; parallel starts on a small machine take tens."""

# What the SDK returns is JSON without types.
Json: TypeAlias = dict[str, Any]


class Gone(Exception):
    """The container has ended or was removed."""


class Engine:
    """The engine DOCKER_HOST names, or the local one. Raises SandboxUnavailable where none answers."""

    def __init__(self) -> None:
        try:
            import docker
            from docker.utils import parse_host
        except ImportError as error:
            raise SandboxUnavailable(f"docker: the Python package is missing ({error}): make setup") from error
        host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            self.address = str(parse_host(host))
            if not self.address.startswith(("http+unix://", "http://")) or os.environ.get("DOCKER_TLS_VERIFY"):
                # Standard input ends by closing half a connection, which TLS and ssh cannot do.
                raise SandboxUnavailable(f"docker: only unix:// and plain tcp:// engines are supported, not {host}")
            self.api = docker.from_env(timeout=int(ANSWER_S)).api
        except (docker.errors.DockerException, ValueError) as error:
            raise SandboxUnavailable(
                f"docker: no engine answers at {host} ({_reason(error)}); start one or set DOCKER_HOST"
            ) from error

    @cached_property
    def info(self) -> Json:
        """What the engine says of itself and its machine. Raises SandboxFailure."""
        with self.doing("ask the engine about itself"):
            return dict(self.api.info())

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Turns the SDK's errors into Gone or SandboxFailure with one line."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            yield
        except APIError as error:
            if error.status_code in (404, 409):
                raise Gone(_reason(error)) from error
            raise SandboxFailure(f"docker: cannot {what}: {_reason(error)}") from error
        except (DockerException, RequestException, OSError) as error:
            raise SandboxFailure(f"docker: cannot {what}: {_reason(error)}") from error

    def image(self, name: str) -> Json | None:
        """A local image, or None; nothing is ever pulled."""
        from docker.errors import ImageNotFound

        try:
            found: Json = self.api.inspect_image(name)  # type: ignore[no-untyped-call]
            return found
        except ImageNotFound:
            return None

    def post(self, path: str, body: Mapping[str, object]) -> None:
        """An API call the SDK lacks."""
        try:
            with self._connect() as connection:
                connection.sendall(self._head(path, body, "Connection: close\r\n"))
                status, _, rest = _answer(connection)
                while more := connection.recv(65536):
                    rest += more
        except OSError as error:
            raise SandboxFailure(f"docker: the engine at {self.address} does not answer: {error}") from error
        _raise_for(status, rest)

    def upgrade(self, path: str, body: Mapping[str, object]) -> Stream:
        """Turn a request into a two-way stream (exec start, attach).

        Raises Gone, or SandboxFailure.
        """
        try:
            connection = self._connect()
        except OSError as error:
            raise SandboxFailure(f"docker: the engine at {self.address} is unreachable: {error}") from error
        try:
            connection.sendall(self._head(path, body, "Connection: Upgrade\r\nUpgrade: tcp\r\n"))
            status, size, rest = _answer(connection)
            if status not in (101, 200):
                # The engine keeps the connection open after a refusal.
                while len(rest) < size and (more := connection.recv(65536)):
                    rest += more
                _raise_for(status, rest)
        except OSError as error:
            connection.close()
            raise SandboxFailure(f"docker: the engine at {self.address} does not answer: {error}") from error
        except BaseException:
            connection.close()
            raise
        return Stream(connection, rest)

    def _connect(self) -> socket.socket:
        if self.address.startswith("http+unix://"):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(ANSWER_S)
            try:
                connection.connect(self.address.removeprefix("http+unix://"))
            except OSError:
                connection.close()
                raise
            return connection
        parts = urlsplit(self.address)
        return socket.create_connection((parts.hostname or "", parts.port or 2375), timeout=ANSWER_S)

    def _head(self, path: str, body: Mapping[str, object], headers: str) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST /v{self.api.api_version}{path} HTTP/1.1\r\nHost: docker\r\n{headers}"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _answer(connection: socket.socket) -> tuple[int, int, bytes]:
    """Status of an answer, the length it announces (0 if none), and what came with its headers."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more or len(data) > 1 << 20:
            raise ConnectionError("no HTTP answer")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return int(head.split(b" ", 2)[1]), int(length[1]) if length else 0, rest


def _raise_for(status: int, answer: bytes) -> None:
    if status < 400:
        return
    text = answer.decode(errors="replace")
    with suppress(ValueError, KeyError):
        text = str(json.loads(text[text.index("{") : text.rindex("}") + 1])["message"])
    if status in (404, 409):
        raise Gone(" ".join(text.split()))
    raise SandboxFailure(f"docker: the engine answers {status}: {' '.join(text.split())[:300]}")


def _reason(error: Exception) -> str:
    """The last cause of an error, on one line."""
    text = str(getattr(error, "explanation", None) or error)
    for marker in ("error: ", "Error: "):
        text = text.rpartition(marker)[2]
    return " ".join(text.split())[:300]
