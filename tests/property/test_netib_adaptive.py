"""Sends without their first packet, which alone tells where they lie: adaptive-routing ones are
placed by the write that closes them, pieces of split ones by what lies around them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.netib import Options, generate
from support.staged import dealt

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

SHAPES = ((61, 90), (61,), (40, 61), (40,))
OPCODE_AT = 14 + 20 + 8
WRITE_FIRST = 0x06


@pytest.mark.parametrize(
    ("protocol", "adaptive", "qps"),
    [("LL", True, 1), ("Simple", True, 1), ("LL", False, 2), ("Simple", False, 2), ("LL", True, 2)],
)
def test_only_the_lost_packet_is_missing(
    protocol: str, adaptive: bool, qps: int, tmp_path: Path
) -> None:
    options = Options(
        shapes=SHAPES,
        ranks=3,
        steps=3,
        version=(2, 23),
        adaptive=adaptive,
        protocol=protocol,
        mtu=1024,
        qps=qps,
        split=qps > 1,
    )
    made = generate(options, tmp_path)
    [file] = made.files
    firsts: list[int] = []

    def look(at: int, frame: bytes) -> int:
        if frame[OPCODE_AT] == WRITE_FIRST:
            firsts.append(at)
        return 0

    dealt(file, tmp_path / "looked", 1, look)
    draw = random.Random(protocol)
    truth = {one.sha256 for one in made.truth.gradients}
    for attempt in range(4):
        lost = draw.choice(firsts[len(firsts) // 3 :])
        [left] = dealt(
            file, tmp_path / str(attempt), 1, lambda at, _, k=lost: None if at == k else 0
        )
        tape = read_capture_files([left])
        reading = read_stream(tape.flows, tape.messages)
        assert not tape.dropped_packets
        told = [c for c in reading.collectives if c.meaning == "gradient bucket"]
        whole = {c.sha256 for c in told if not c.missing}
        assert whole <= truth and len(whole) >= len(truth) - 1
        missing = sum(stop - start for c in told for start, stop in c.missing)
        assert missing <= options.mtu
