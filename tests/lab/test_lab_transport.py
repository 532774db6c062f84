"""The lab's transport between two hosts: bytes under loss, peers that lie or are gone."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hosts import Hosts, hosts
from support.ports import Exchange
from support.talk import MIXED, TESTS, talk

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]


@pytest.fixture
def pair() -> Iterator[Hosts]:
    with hosts(2, TESTS) as made:
        yield made


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("reorder", [0.0, 0.03])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nccl_version": 21900, "qps_per_connection": 2, "split_data": 1, "pmtu_bytes": 1024},
        {"nccl_version": 22900, "qps_per_connection": 3, "random_qpn": 1},
        {"nccl_version": 23000, "qps_per_connection": 4, "split_data": 1, "adaptive": 1},
    ],
)
def test_bytes_arrive(
    pair: Hosts, tmp_path: Path, loss: float, reorder: float, settings: dict[str, int]
) -> None:
    draw = random.Random(f"{loss}{reorder}{settings}")
    # So many that chance spares no side: 2,000 frames of each, one lost in a hundred.
    sizes = [draw.choices(MIXED, k=100 if settings else 300) for _ in range(3 if settings else 1)]
    impaired = settings | {"loss": loss, "reorder": reorder}
    first, second = talk(pair, Exchange(str(tmp_path), sizes, settings=impaired))
    for one, other in ((first, second), (second, first)):
        assert one["icrc_bad_frames"] == one["foreign_frames"] == 0
        # What is sent again at the very end, or answers such, may come when the other has left:
        # a busy machine lets the timer of frames nobody lost run out.
        late = one["retransmitted_frames"] + other["retransmitted_frames"]
        assert 0 <= one["tx_frames"] - other["rx_frames"] <= late
        assert bool(one["dropped_frames"]) == bool(loss)
        # Frames of different QPs that change places disturb nobody.
        if loss or (reorder and not settings):
            assert one["retransmitted_frames"] > 0
            # All that one side lacks may be last frames, which the sender's timer brings again.
            assert one["naks_sent"] + other["naks_sent"] > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"interface": b"eth7"}, "eth7: no such interface here"),
        ({"pmtu_bytes": 3000}, "path MTU 3000: one of 256, 512, 1024, 2048, 4096"),
        ({"qps_per_connection": 9}, "9 QPs per connection"),
        ({"loss": 1.0}, "probabilities below 1"),
        ({"retries": 0}, "must not be 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(
    pair: Hosts, change: dict[str, Any], sentence: str
) -> None:
    script = f"""
import socket
from support.ports import Port, PortError
kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
kept.bind(("", 4791))
for change, sentence in ({change!r}, {sentence!r}), ({{}}, "port 4791 is taken by another"):
    try:
        Port(64, **change)
    except PortError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(sentence)
"""
    process = pair.start(0, script)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


LIAR = """
from support import ports
honest = ports.swap
def swap(folder, rank, own):
    lie = bytearray(own[0])
    lie[AT] ^= 0xff
    return honest(folder, rank, [bytes(lie), *own[1:]])
ports.swap = swap
"""
GONE = """
import sys
from support import ports
ports.part = lambda *_: sys.exit(0)
ports.Port.turn = lambda port: sys.exit(0)
"""
FIFO_VA_AT, FIFO_RKEY_AT = 52, 56
"""Of a handle, the sender's: bytes that decide where clear-to-send entries go."""


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        (LIAR.replace("AT", str(FIFO_VA_AT)), "refused a write (AETH syndrome 0x62)"),
        (LIAR.replace("AT", str(FIFO_RKEY_AT)), "refused a write (AETH syndrome 0x62)"),
        (GONE, "10.78.0.2 did not answer 4 times"),
    ],
)
def test_a_peer_that_lies_or_is_gone_ends_in_a_sentence(
    pair: Hosts, tmp_path: Path, peer: str, sentence: str
) -> None:
    settings = {"timeout_ms": 50, "retries": 3}
    exchange = Exchange(str(tmp_path), [[5000]], settings=settings).pipes()
    other = pair.start(1, peer + exchange.script(1))
    process = pair.start(0, exchange.script(0))
    _, err = process.communicate(timeout=60)
    other.kill()
    other.communicate()
    assert process.returncode == 1
    assert sentence in err
