"""Flows read as columns: the connections are those that are made message by message, and a flow
that lacks anything is not read so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.flows import roles
from flowcheck.wire.learn.flows.clean_flows import CleanSends
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.traffic.observed_messages import ObservedMessage

SHAPES = ((96, 41), (97,), (30, 96), (31,))
JOBS = {
    "ll": Options(ranks=3, shapes=SHAPES),
    "ll128": Options(ranks=4, shapes=SHAPES, protocol="LL128", version=(2, 23), channels=2),
    "simple": Options(ranks=4, shapes=SHAPES, protocol="Simple", version=(2, 30), channels=4),
    "mixed": Options(
        ranks=3, shapes=SHAPES, protocol="Simple", mix=((1024, "LL"), (12000, "LL128")),
        version=(2, 26), caps_bytes=(6000, 6000),
    ),
    "turns": Options(ranks=4, shapes=SHAPES, protocol="Simple", version=(2, 30), qps=4),
}  # fmt: skip


def _told(stream: Stream) -> list[object]:
    columns = stream.columns
    return [
        (stream.key, stream.protocol, stream.from_start, stream.numbered_by, stream.problems),
        (stream.peer, stream.tag, stream.capacities_bytes, stream.queue_pairs, stream.turns),
        list(stream.sends.items()),
        (columns.first, columns.sizes, columns.protocol_codes, columns.times_ns.tolist()),
        (columns.orders.tolist(), columns.torn.tolist(), stream.stated),
    ]


@pytest.mark.parametrize("name", JOBS)
def test_connections_are_those_of_single_messages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = read_capture_files(generate(JOBS[name], tmp_path).files)
    messages = sorted(seen.messages, key=lambda message: message.order)
    for count in (len(messages), len(messages) // 2, 30):
        clean = roles.sort_flows(seen.flows, messages[:count])
        as_columns = [isinstance(stream.sends, CleanSends) for stream in clean.streams]
        assert all(as_columns) or name == "turns"
        with monkeypatch.context() as patch:
            patch.setattr(roles, "clean_sends", lambda *_: None)
            single = roles.sort_flows(seen.flows, messages[:count])
        assert not any(isinstance(stream.sends, CleanSends) for stream in single.streams)
        assert list(map(_told, clean.streams)) == list(map(_told, single.streams))
        assert clean.readings == single.readings


def test_sizes_and_protocols_are_the_generators(tmp_path: Path) -> None:
    """Of what rank 0 sends first: the count to all in LL, as `mix` has it, then more."""
    seen = read_capture_files(generate(JOBS["mixed"], tmp_path).files)
    sends = [stream.sends for stream in roles.sort_flows(seen.flows, seen.messages).streams]
    told = {send.protocol for of in sends for send in of.values() if send.wire_bytes}
    assert told == set(Protocol)
    assert sum(map(len, sends)) == sum(m.immediate is not None for m in seen.messages)


@pytest.mark.parametrize(
    "worse",
    [
        lambda message: None,
        lambda message: replace(message, immediate=None),
        lambda message: replace(message, missing=((0, 16),)),
        lambda message: replace(message, va=1 << 40),
        lambda message: replace(message, va=(1 << 64) - 16),
        lambda message: replace(message, length_inferred=True),
        lambda message: replace(message, payload=message.payload[::-1]),
    ],
    ids=[
        "lost",
        "no immediate",
        "torn",
        "elsewhere",
        "at the last address",
        "size inferred",
        "no flag",
    ],
)
def test_a_flow_that_lacks_something_is_not_clean(worse: object, tmp_path: Path) -> None:
    seen = read_capture_files(generate(JOBS["ll"], tmp_path).files)
    place = [m.wire_bytes > 64 and m.immediate is not None for m in seen.messages].index(True)
    changed: list[ObservedMessage | None] = [*seen.messages]
    changed[place] = worse(changed[place])  # type: ignore[operator]
    left = [message for message in changed if message is not None]
    flow = seen.messages[place].flow
    streams = {s.key: s.sends for s in roles.sort_flows(seen.flows, left).streams}
    assert not isinstance(streams[flow], CleanSends)
    assert any(isinstance(sends, CleanSends) for sends in streams.values())
