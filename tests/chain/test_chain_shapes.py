"""Jobs of other shapes through the whole chain: what nobody wrote a constant for."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.chain import Command

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap

SHAPES = ((31, 7), (90,), (3, 5, 11), (1,), (64, 40))
BUCKETS = ((4, 1), (3, 0, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(
            SyntheticJob(version="2.19", channels=3, dtype=torch.bfloat16),
            marks=pytest.mark.nightly,
        ),
        SyntheticJob(version="2.20", ranks=3, channels=2, adaptive=True, ip_version=4),
        pytest.param(
            SyntheticJob(version="2.26", ranks=4, channels=2, pmtu_bytes=4096),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            SyntheticJob(version="2.29", ranks=5, dtype=torch.float16, adaptive=True),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["bf16-3-channels", "adaptive-3-ranks", "mtu-4096-4-ranks", "fp16-5-ranks"],
)
def test_every_gradient_of_a_job_of_another_shape_reaches_the_replica(
    job: SyntheticJob, tmp_path: Path
) -> None:
    """A ring of 4,096 slots, a first iteration laid out unlike the later ones."""
    made = replace(job, shapes=SHAPES, buckets=BUCKETS, steps=5)
    truth = make_traffic(made)
    write_pcap(tmp_path / "job.pcap", truth.frames_at_port(made.ranks - 1))
    dtype = str(made.dtype).removeprefix("torch.")
    (tmp_path / "job.toml").write_text(
        f'digests = true\n[[source]]\nfile = "replaced"\n[ring]\nslots = 4096\n'
        f'[model]\ndtype = "{dtype}"\n[optimizer]\nname = "adamw"\nlearning_rate = 0.001\n'
    )
    with Command(
        "replay", tmp_path / "job.pcap", "--job", tmp_path / "job.toml", "--json"
    ) as command:
        result = command.json()
    assert [step["gradient_sha256"] for step in result["digests"]] == [
        hashlib.sha256(gradient).hexdigest() for gradient in truth.gradients
    ]
    assert result["steps"] == made.steps and result["lost"] is None
