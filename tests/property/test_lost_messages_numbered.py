"""A message of Simple that one connection lost whole: those behind it keep their places, so that it
costs its own bytes alone, and nothing where another connection carried these too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cut import gradient_of, is_true_but_for
from support.netib import Options, generate
from support.pcap_records import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, records_of
from support.staged import Chain, played

from flowcheck.messages import StepLost
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.traffic.observed_messages import ObservedMessage

WIDE = ((300, 311), (311,), (90, 311), (91,))
JOB = Options(
    ranks=3, shapes=WIDE, protocol="Simple", version=(2, 26), channels=2, steps=8,
    caps_bytes=(40000, 90000), mirrored=(0,),
)  # fmt: skip
PSN_MODULO = 1 << 24
LEAST_BYTES = 4096
"""Of the messages that are lost: more than one frame."""


def sent_messages(file: Path, host: str) -> list[ObservedMessage]:
    """Large data messages of a host, in their order."""
    seen = read_capture_files([file]).messages
    own = [m for m in seen if m.immediate is not None and m.wire_bytes > LEAST_BYTES]
    return sorted((m for m in own if m.flow.source == host), key=lambda m: m.order)


def lose(file: Path, message: ObservedMessage) -> int:
    """Takes all frames of a message out of a capture; how many."""
    first = message.first_psn % PSN_MODULO
    capture = file.read_bytes()
    kept, lost = [capture[:FILE_HEADER_BYTES]], 0
    for record in records_of(capture):
        frame = record[RECORD_HEADER_BYTES:]
        # IPv4 without options, UDP, then the BTH: queue pair at byte 5, PSN at byte 9.
        queue_pair, psn = (int.from_bytes(frame[at : at + 3], "big") for at in (47, 51))
        own = frame[26:30] == bytes(map(int, message.flow.source.split(".")))
        if own and queue_pair == message.flow.dest_qp and 0 <= psn - first < message.packets:
            lost += 1
        else:
            kept.append(record)
    file.write_bytes(b"".join(kept))
    return lost


@pytest.mark.parametrize("place", [0.5, 0.55, 0.6, 0.7])
def test_one_lost_message_costs_its_own_bytes_or_nothing(
    place: float, tmp_path: Path, shm: Path
) -> None:
    made = generate(JOB, tmp_path)
    sent = sent_messages(made.files[0], "10.0.0.1")
    message = sent[int(place * len(sent))]
    assert lose(made.files[0], message) == message.packets
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    assert all(gradient == gradient_of(made.truth, step - 1) for step, gradient in found.items())
    assert not chain.heard.of(StepLost)
    assert sorted({**found, **chain.partial}) == list(range(1, JOB.steps + 1))
    for step, (gradient, missing) in chain.partial.items():
        assert is_true_but_for(gradient, missing, gradient_of(made.truth, step - 1))
        assert sum(stop - start for start, stop in missing) == message.wire_bytes


def test_of_a_bucket_that_two_connections_carry_nothing_is_lost(tmp_path: Path, shm: Path) -> None:
    made = generate(JOB, tmp_path)
    lost = 0
    for message in _forwarded(made.files[0]):
        lost += lose(made.files[0], message)
    assert lost
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    assert found == {step + 1: gradient_of(made.truth, step) for step in range(JOB.steps)}


def _forwarded(file: Path) -> Iterator[ObservedMessage]:
    """One large message that rank 0 passes on as it came, amid the job."""
    sent, came = sent_messages(file, "10.0.0.1"), sent_messages(file, "10.0.0.3")
    for message in sent[len(sent) // 2 :]:
        if any(other.payload.tobytes() == message.payload.tobytes() for other in came):
            yield message
            return
