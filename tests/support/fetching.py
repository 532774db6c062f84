"""Servers to fetch from, a way to them that is cut, and what sha256sum says of what came."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from support import preloaded

from flowcheck.config import ServeConfig
from flowcheck.vault.serve import step_server as http
from flowcheck.vault.serve.step_catalog import StepCatalog


@contextmanager
def verb(*words: str) -> Iterator[str]:
    """The URL of a `flowcheck serve` in a process of its own."""
    command = ["serve", "--json", "--port", "0", *words]
    process = preloaded.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


@contextmanager
def served(what: Path | dict[str, StepCatalog], **more: object) -> Iterator[str]:
    """The same, in this process: of a folder, or of several jobs."""
    catalogue = StepCatalog([what]) if isinstance(what, Path) else what
    made = http.StepServer(catalogue, ServeConfig(port=0, **more))  # type: ignore[arg-type]
    made.start()
    try:
        yield made.url
    finally:
        made.stop()


class Cutting:
    """A port before another one, which cuts each connection after so many bytes of answers."""

    def __init__(self, to: str, after_bytes: int) -> None:
        self._to, self.after_bytes, self.passed = int(to.rsplit(":", 1)[1]), after_bytes, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            other = socket.create_connection(("127.0.0.1", self._to))
            Thread(target=self._pass, args=(one, other, False), daemon=True).start()
            Thread(target=self._pass, args=(other, one, True), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        left = self.after_bytes
        with suppress(OSError):
            while left > 0 and (data := source.recv(16384)):
                to.sendall(data[:left] if counted else data)
                self.passed += len(data[:left]) if counted else 0
                left -= len(data) if counted else 0
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listening.close()


def sums(folder: Path) -> dict[str, str]:
    told = subprocess.run(
        ["sha256sum", *sorted(path.name for path in folder.iterdir())],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split()[1]: line.split()[0] for line in told.stdout.splitlines()}
