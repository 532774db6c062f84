"""Initial weights of a large model are put together when asked for: from whole copies, compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.netib import Options, Truth, generate
from support.netib.options import LL, LL128, SIMPLE

from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.reading import Weights
from flowcheck.wire.learn.verdict import collect
from flowcheck.wire.traffic.observed_messages import ObservedMessage

LARGE = Options(seed=9, ranks=3, shapes=((300, 401), (300,), (77, 300)), steps=3)


def captured(tmp_path: Path, **settings: object) -> tuple[CaptureContents, Truth]:
    made = generate(replace(LARGE, **settings), tmp_path)  # type: ignore[arg-type]
    return read_capture_files(made.files), made.truth


def weights_of(seen: CaptureContents, messages: Sequence[ObservedMessage]) -> Weights:
    """As a chain reads them, which asks for no gradients."""
    reading = read_stream(seen.flows, messages, results=False)
    assert reading.job is not None, reading.why_not
    assert reading.weights is not None
    return reading.weights


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("protocol", [LL, LL128, SIMPLE])
def test_whole_copies_give_the_trainers_bytes_without_the_slower_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, channels: int
) -> None:
    seen, truth = captured(tmp_path, protocol=protocol, channels=channels, mirrored=(1,))
    weights = weights_of(seen, seen.messages)
    assert weights.deferred is not None
    monkeypatch.delattr(collect, "paint")
    assert weights.data.tobytes() == truth.weights
    assert weights.sound


@pytest.mark.parametrize("protocol", [LL, LL128, SIMPLE])
def test_copies_that_differ_anywhere_are_no_weights(tmp_path: Path, protocol: str) -> None:
    """Beyond the beginnings of sends, which are all that a reading compares."""
    seen, _ = captured(tmp_path, protocol=protocol, mirrored=(1,))
    messages = list(seen.messages)
    size = len(max(messages, key=lambda one: len(one.payload)).payload)
    place = next(i for i, one in enumerate(messages) if len(one.payload) == size)
    payload = messages[place].payload.copy()
    payload[len(payload) // 32 * 16 + 2048] ^= 0x10
    messages[place] = replace(messages[place], payload=payload)
    assert not weights_of(seen, messages).sound


def test_one_direction_of_a_port_has_one_copy(tmp_path: Path) -> None:
    seen, truth = captured(tmp_path, protocol=SIMPLE, directions="rx", mirrored=(1,))
    weights = weights_of(seen, seen.messages)
    assert np.frombuffer(truth.weights, np.uint8).tobytes() == weights.data.tobytes()
    assert weights.sound
