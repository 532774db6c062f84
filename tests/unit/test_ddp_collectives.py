"""Traffic that nothing can be followed of is named, by `analyze` and by the live chain alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Options, generate
from support.staged import Chain, played

from flowcheck.findings.catalog import non_nccl_frames
from flowcheck.findings.catalog.non_nccl_frames import ENCRYPTED
from flowcheck.messages import Drained
from flowcheck.ops.analysis import analyze_command
from flowcheck.wire.traffic.non_nccl_traffic import non_nccl_reasons

SHAPES = ((40, 30), (40,))


@pytest.mark.parametrize("wrap", ["macsec", "esp"])
def test_encrypted_frames_are_named_and_give_no_tensor(
    wrap: str, tmp_path: Path, shm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = generate(Options(shapes=SHAPES, wrap=wrap), tmp_path).files
    analyze_command.run(files)
    told = " ".join(capsys.readouterr().out.split())
    assert "no RDMA write was seen" in told and "frames are encrypted (MACsec, IPsec" in told
    assert "all_reduce" not in told
    chain = Chain(tmp_path, shm / "memory", files, 512)
    assert not played(chain, 32)
    chain.close()
    [end] = chain.heard.of(Drained)
    assert ENCRYPTED.code in {why.code for why in end.why.arguments["reasons"]} and not end.steps


def test_what_a_port_carries_instead_is_told_the_most_of_it_first() -> None:
    told = non_nccl_reasons({"tcp": 40, "send": 900, "read": 80, "arp": 3, "write": 0})
    assert told == (
        non_nccl_frames.SENDS(900),
        non_nccl_frames.READS(80),
        non_nccl_frames.TCP(40),
    )


def test_a_launchers_few_frames_are_no_sockets_of_nccl_while_more_may_come() -> None:
    [told] = non_nccl_reasons({"tcp": 300, "arp": 3}, goes_on=True)
    assert told == non_nccl_frames.TCP_SO_FAR(300)
    [told] = non_nccl_reasons({"tcp": 60_000, "arp": 3}, goes_on=True)
    assert told == non_nccl_frames.TCP(60_000)


def test_beside_writes_only_many_encrypted_frames_are_worth_a_word() -> None:
    assert not non_nccl_reasons({"write": 100_000, "tcp": 9000, "encrypted": 10})
    assert non_nccl_reasons({"write": 100_000, "encrypted": 9000}) == (
        non_nccl_frames.ENCRYPTED(9000),
    )


def test_storage_alone_is_not_taken_for_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(Options(shapes=SHAPES, storage=30, steps=1), tmp_path)
    whole = made.files[0].read_bytes()
    kept, at = [whole[:24]], 24
    while at < len(whole):
        size = int.from_bytes(whole[at + 8 : at + 12], "little")
        frame = whole[at + 16 : at + 16 + size]
        if 201 in (frame[10], frame[4]):  # the storage server's address
            kept.append(whole[at : at + 16 + size])
        at += 16 + size
    made.files[0].write_bytes(b"".join(kept))
    analyze_command.run(made.files)
    told = " ".join(capsys.readouterr().out.split())
    assert "frames are RDMA SENDs: storage" in told and "frames are RDMA READs" in told
