"""Sends from one rank to another beside DDP, as of pipeline stages: whatever their number, size and
direction, they are known for what they are, and the job is followed as without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cut import gradient_of
from support.netib import Options, generate
from support.staged import Chain, played

from flowcheck.messages import Drained
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.search.communicators import ring_and_p2p

SHAPES = ((45, 13), (45,), (45, 45), (45,), (7, 45), (7,))
LL_SLOT = 65_536
"""Bytes of LL's receives, which releases 2.20 to 2.28 grant for sends of 128 KiB to 1 MiB too."""
ALL_OF_ONE = ((0, 2), (2, 0), (0, 3), (3, 0), (0, 1), (1, 0))
AROUND = ((0, 1), (1, 2), (2, 3), (3, 0))
JOBS = {
    "small": Options(ranks=4, version=(2, 28), pipeline_bytes=468, pairs=((0, 1),)),
    "as-the-ring-goes": Options(ranks=4, version=(2, 28), pipeline_bytes=4000, pairs=AROUND),
    "against-the-ring": Options(
        ranks=3, version=(2, 26), pipeline_bytes=9000, pairs=((1, 0), (0, 2)), mirrored=(0,)
    ),
    "every-rank": Options(
        ranks=4, version=(2, 28), pipeline_bytes=9000, pairs=ALL_OF_ONE, pairs_first=3
    ),
    "two-ranks-simple": Options(
        ranks=2, version=(2, 26), protocol="Simple", pipeline_bytes=9000, pairs=((0, 1), (1, 0))
    ),
    "as-large-as-ll": Options(
        ranks=3, version=(2, 26), pipeline_bytes=200_000, pairs=((0, 1), (1, 0)), pairs_first=2
    ),
    "as-large-as-ll-beside-ll128": Options(
        ranks=4, version=(2, 28), protocol="LL128", pipeline_bytes=2 * LL_SLOT, pairs=AROUND,
        mirrored=(1,),
    ),
    "as-large-as-ll-in-simple": Options(
        ranks=3, version=(2, 23), protocol="Simple", pipeline_bytes=150_000, pairs=((2, 0),)
    ),
    "large": Options(ranks=3, version=(2, 28), pipeline_bytes=3_000_000, pairs=((0, 2), (2, 0))),
    "of-the-pools-size": Options(ranks=4, version=(2, 30), pipeline_bytes=9000, pairs=ALL_OF_ONE),
    "beside-trees": Options(
        ranks=4, version=(2, 28), tree_below=1 << 20, pipeline_bytes=2 * LL_SLOT,
        pairs=ALL_OF_ONE, pairs_first=1,
    ),
}  # fmt: skip
BY_NIGHT = {"against-the-ring", "as-large-as-ll-in-simple", "large", "of-the-pools-size"}


def shaped(name: str) -> Options:
    return Options(**{**vars(JOBS[name]), "shapes": SHAPES, "steps": 3, "seed": len(name)})


@pytest.mark.parametrize("name", JOBS)
def test_pairs_are_no_part_of_any_ring(name: str, tmp_path: Path) -> None:
    """Not one of their connections is looked for in a ring, whatever else there is: by how many
    there are besides. All that the job did is told, of its start and of each prefix."""
    options = shaped(name)
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    streams = sort_flows(tape.flows, tape.messages).streams
    rings, pairs = ring_and_p2p(streams)
    ours = [pair for pair in options.pairs if set(pair) & set(options.mirrored)]
    assert len({(s.key.source, s.key.destination) for s in pairs}) == len(ours)
    assert {s.protocol for s in pairs} == {Protocol.SIMPLE}
    assert len(rings) == 2 or options.tree_below
    sent = [c for c in made.truth.collectives if c.kind == "send"]
    reading = read_stream(tape.flows, tape.messages)
    told = [c for c in reading.collectives if c.kind == "send_recv"]
    assert sum(c.bytes for c in told) == sum(len(c.result) for c in sent)
    assert reading.why_not == () and reading.job is not None and reading.weights is not None
    assert reading.weights.data.tobytes() == made.truth.weights
    right = [each.sha256 for each in made.truth.gradients]
    assert [c.sha256 for c in reading.collectives if c.meaning == "gradient bucket"] == right
    for count in range(len(tape.messages) // 2, len(tape.messages), 40):
        early = read_stream(tape.flows, tape.messages[:count], hasty=True, ended=False)
        assert early.weights is None or early.weights.sha256 == reading.weights.sha256
        assert {c.meaning for c in early.collectives if c.kind == "all_reduce"} <= {
            "gradient bucket"
        }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else ()) for name in JOBS],
)
def test_jobs_beside_pairs_are_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options = shaped(name)
    made = generate(options, tmp_path)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    [end] = chain.heard.of(Drained)
    assert found == {step + 1: gradient_of(made.truth, step) for step in range(options.steps)}, (
        end.why
    )
