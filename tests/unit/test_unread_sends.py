"""A broadcast of the weights is not called whole while sends beside it fit nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.findings.catalog.collective_evidence import SIZE_BESIDE_UNREAD
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.search.communicators import Communicator, rules_told
from flowcheck.wire.learn.search.several import find_communicators
from flowcheck.wire.learn.trainer.habits import SHAPES, WEIGHTS
from flowcheck.wire.learn.verdict.beside import passed_over
from flowcheck.wire.learn.verdict.doubt import doubts_about


@pytest.fixture
def communicator(tmp_path: Path) -> Communicator:
    """Shapes go by one channel, weights and gradients by two."""
    made = generate(
        Options(shapes=((100, 150), (40,)), channels=2, steps=2, protocol="Simple"), tmp_path
    )
    tape = read_capture_files(made.files)
    told = sort_flows(tape.flows, tape.messages)
    [found] = find_communicators(
        told.streams, told.grants, rules_told(told), Purse.for_sends(len(tape.messages)), ()
    )
    assert not found.cuts.unread
    return found


def test_what_goes_on_beside_the_weights_and_fits_nothing_leaves_their_size_open(
    communicator: Communicator,
) -> None:
    cuts = communicator.cuts
    at = next(i for i, cut in enumerate(cuts.found) if cut.op.meaning == SHAPES)
    shapes = cuts.found[at]
    # As if that had been the weights, and nothing behind it could be read.
    weights = replace(shapes, op=replace(shapes.op, meaning=WEIGHTS))
    unread = replace(communicator, cuts=replace(cuts, found=(*cuts.found[:at], weights), unread=9))
    assert doubts_about(weights, unread) == [SIZE_BESIDE_UNREAD()]


def test_a_send_that_fits_nothing_long_after_the_weights_leaves_them_told(
    communicator: Communicator,
) -> None:
    found = communicator.cuts.found
    later = replace(communicator, cuts=replace(communicator.cuts, found=found[:-1], unread=9))
    weights = next(cut for cut in found if cut.op.meaning == WEIGHTS)
    shapes = next(cut for cut in found if cut.op.meaning == SHAPES)
    assert not passed_over(shapes, later)
    assert doubts_about(weights, later) == []
