"""Every instant of an operation on a mapped file: between any two lines of the program, and between
any two words of what says what the file holds, it is looked at; where it changed, whoever judges is
given a copy, which is what a process that was killed there would leave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from flowcheck.replica.state_file import file_header

WORD = 8
OURS = str(Path(file_header.__file__).parents[2])


@contextmanager
def every_instant(
    monkeypatch: pytest.MonkeyPatch, path: Path, judge: Callable[[bytes], None]
) -> Iterator[None]:
    """judge: is given the file's bytes wherever they changed, and raises where they are wrong."""
    seen, busy = {path.read_bytes()}, [False]

    def look() -> None:
        raw = path.read_bytes()
        if raw not in seen:
            seen.add(raw)
            judge(raw)

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or busy[0]:
            return None
        busy[0] = True
        try:
            look()
        finally:
            busy[0] = False
        return traced

    with monkeypatch.context() as patch:
        if hasattr(file_header, "store_words"):
            whole = file_header.store_words

            def by_words(memory: Any, at: int, raw: bytes) -> None:
                for word in range(0, len(raw), WORD):
                    whole(memory, at + word, raw[word : word + WORD])
                    look()

            patch.setattr(file_header, "store_words", by_words)
        sys.settrace(traced)
        try:
            yield
        finally:
            sys.settrace(None)
        look()
