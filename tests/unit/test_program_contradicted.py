"""What a program expects by its size gives way where the copies of what it would hold differ."""

from __future__ import annotations

import hashlib
from pathlib import Path

from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

OPTIONS = Options(
    ranks=10,
    channels=15,
    version=(2, 23),
    protocol="LL128",
    shapes=((256, 256), (256,), (90, 256), (90,)),
    steps=3,
    caps_bytes=(4000, 20000),
    buffers=64,
    mirrored=(9,),
    mtu=4096,
)
"""Buffers go in one message, which is as large as those of a bucket on that channel: the bucket may
as well come first, and the buffers behind its first message."""


def test_buffers_before_a_bucket_are_not_read_behind_it(tmp_path: Path) -> None:
    capture = generate(OPTIONS, tmp_path)
    seen = read_capture_files(capture.files)
    told = read_stream(seen.flows, seen.messages, hasty=True)
    gradients = [one for one in told.collectives if one.meaning == "gradient bucket"]
    sent = [one for one in capture.truth.collectives if one.gradient]
    assert [one.sha256 for one in gradients] == [
        hashlib.sha256(one.result).hexdigest() for one in sent
    ]
