"""Files of settings that are no plain files, or have no end that is near."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config.toml_file import read_toml
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import NOT_A_TEXT_FILE, TOML_TOO_LARGE

LARGE = 20 << 20


def write_pipe(path: Path, content: bytes) -> threading.Thread:
    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(content)

    os.mkfifo(path)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer


def test_a_device_is_refused_unread() -> None:
    with refused_as(NOT_A_TEXT_FILE, kind=ConfigError):
        read_toml(Path("/dev/null"), "job file", "FILE")


def test_a_pipe_is_read(tmp_path: Path) -> None:
    writer = write_pipe(tmp_path / "pipe", b"[a]\nb = 3\n")
    assert read_toml(tmp_path / "pipe", "job file", "FILE") == {"a": {"b": 3}}
    writer.join(10)


@pytest.mark.parametrize("piped", [False, True])
def test_what_is_too_large_is_refused(tmp_path: Path, piped: bool) -> None:
    path = tmp_path / "large"
    content = b"a = 1\n" + b"#" * LARGE
    if piped:
        write_pipe(path, content)
    else:
        path.write_bytes(content)
    with refused_as(TOML_TOO_LARGE, kind=ConfigError):
        read_toml(path, "job file", "FILE")
