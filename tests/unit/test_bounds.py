"""What a chain that runs for months keeps of what it said, and of the lives of its job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.lifecycle import follow, give_verdict, offer
from test_node_ranks import stream_of

from flowcheck.findings.catalog.chain_processes import STARTED_BY
from flowcheck.stages.extraction.job_restart import INCARNATIONS_KEPT, promote_successor
from flowcheck.stages.job_state.lifecycle_record_schema import Incarnation, RestartVerdict
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.chain_progress import MOST_NOTES, OperatorNotes
from flowcheck.step_numbers import Step
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.verdict.collect import parcels_left


def test_only_the_last_notes_are_kept_and_none_is_told_twice() -> None:
    notes = OperatorNotes()
    told = 0
    for number in range(3 * MOST_NOTES):
        notes.append(STARTED_BY(number))
        if number % 7 == 0:
            assert notes.since(told)[-1] == STARTED_BY(number)
            told = notes.count
    assert len(list(notes)) == MOST_NOTES
    assert notes.since(told) == [STARTED_BY(n) for n in range(told, 3 * MOST_NOTES)]
    assert len(notes.since(0)) == MOST_NOTES and not notes.since(notes.count)


def test_of_many_lives_the_last_ones_are_on_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    for file in (run.learned_job, run.weights):
        file.write_bytes(b"1")
    lives = INCARNATIONS_KEPT + 4
    shard: Any = SimpleNamespace(clear=lambda: None)
    follow(run, Incarnation())
    for number in range(1, lives + 1):
        folder, verdict = offer(run, number + 1), RestartVerdict(number=number, step=Step(0))
        give_verdict(run, verdict)
        for file in (run.learned_job, run.weights):
            (folder / file.name).write_bytes(str(number + 1).encode())
        lifecycle = ExtractLifecycle(run, [].append, awaits_base=False)
        promote_successor(lifecycle, verdict, shard)
    kept = sorted(int(path.name) for path in run.learned_folder.iterdir() if path.is_dir())
    assert kept == list(range(lives - INCARNATIONS_KEPT + 1, lives + 1))
    assert run.learned_job.read_bytes() == str(lives + 1).encode()
    assert (run.history(lives) / run.learned_job.name).read_bytes() == str(lives).encode()


def test_a_connection_of_empty_sends_is_not_told_to_be_point_to_point() -> None:
    empty = stream_of((SimpleNamespace(wire_bytes=0),) * 3, Protocol.SIMPLE)  # type: ignore[arg-type]
    assert not parcels_left([empty], 1)
    for number, size in enumerate((0, 64, 0)):
        send = empty.sends[number]
        message = replace(send.message, payload=np.zeros(size, np.uint8), wire_bytes=size)
        empty.sends[number] = replace(send, message=message, wire_bytes=size)
    assert [one.bytes for one in parcels_left([empty], 1)] == [0, 64, 0]
