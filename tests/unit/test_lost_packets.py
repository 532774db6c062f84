"""Frames that reached the machine and no slot: every place that shows losses shows all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from flowcheck._core import ffi, lib
from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig, encode_config
from flowcheck.config.watch_log_config import WatchConfig
from flowcheck.lab.job_run.run_display import run_figures
from flowcheck.ops.lifecycle import status_command
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import LOSS_COUNTERS, lost_frames
from flowcheck.stages.chain_events.event_recorder import EventRecorder
from flowcheck.stages.run_directory.run_dir import RunDir

CONFIG = JobConfig(
    source=(SourceConfig(interface="mirror0", queues=2),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
)
NO_LOSSES = {
    "rx_frames",
    "rx_bytes",
    "pushed_frames",
    "snapped_frames",
    "multi_segment_frames",
    "engine_copied_frames",
    "engine_refused_frames",
}
"""Of fc_counters.h: what arrived, and how it was copied."""


@pytest.fixture
def run(tmp_path: Path, shm: Path) -> Iterator[RunDir]:
    made = RunDir.create(tmp_path / "run", shm)
    made.config.write_bytes(encode_config(CONFIG))
    for number in range(2):
        FrameRing.create(made.ring(number), slots=64, slot_bytes=128, live_source=True).close()
        FlowTable.create(made.flows(number), messages=128).close()
    yield made
    made.remove()


def count(run: RunDir, number: int, **counters: int) -> None:
    with FrameRing.open(run.ring(number)) as ring:
        commit = ring.capture_commit()
        for name, value in counters.items():
            setattr(commit.counters, name, value)
        lib.fc_ring_publish(ring.handle, 0, commit)


def test_every_counter_of_capture_is_either_a_loss_or_known_to_be_none() -> None:
    fields = {name for name, _ in ffi.typeof("struct fc_capture_counters").fields}
    assert fields == set(LOSS_COUNTERS) | NO_LOSSES
    assert not set(LOSS_COUNTERS) & NO_LOSSES
    each = {name: 10**place for place, name in enumerate(sorted(LOSS_COUNTERS))}
    assert lost_frames(each | dict.fromkeys(NO_LOSSES, 5)) == sum(each.values())


def test_status_shows_what_the_kernel_dropped_before_us(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    count(run, 0, rx_frames=9000, interface_missed_frames=1234)
    count(run, 1, rx_frames=9000, ring_full_frames=40, nic_missed_frames=2, oversize_frames=1)
    assert status_command.run(run.root, as_json=False) == 1, "no stage runs"
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = [[cell for cell in line if cell not in "│┃"] for line in shown]
    dropped = {row[0]: row[4] for row in cells if len(row) >= 6 and row[0] in ("0", "1")}
    assert dropped == {"0": "1,234", "1": "43"}
    status_command.run(run.root, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["rings"][0]["lost"]["interface_missed_frames"] == 1234


def test_a_full_table_of_flows_is_told_by_status_and_events(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    status_command.run(run.root, as_json=False)
    assert "table of" not in capsys.readouterr().out
    recorder = EventRecorder(run, CONFIG)
    with ExitStack() as files:
        rings = [files.enter_context(FrameRing.open(run.ring(number))) for number in range(2)]
        for packets in (5, 9, 11):
            for commit in rings[1].handle.header.parse:
                commit.counters.flow_table_full_packets = packets
            recorder._look_at_tables(rings)
    lines = [json.loads(line) for line in run.events.read_text().splitlines()]
    assert [(line["count"], line["why"]["arguments"]) for line in lines] == [
        (5, {"flows": 16384, "packets": 5}),
        (6, {"flows": 16384, "packets": 11}),
    ]
    status_command.run(run.root, as_json=False)
    assert "full: 11 packets of queue pairs" in " ".join(capsys.readouterr().out.split())


def test_the_labs_display_adds_the_losses_of_all_rings(run: RunDir) -> None:
    assert run_figures({"step": 7}, status_command.read_chain(run))["lost in capture"] == "0"
    count(run, 0, interface_missed_frames=1234, nic_no_mbuf_frames=1)
    count(run, 1, ring_full_frames=10_000)
    shown = run_figures({"step": 7, "loss": 0.5}, status_command.read_chain(run))
    assert shown["lost in capture"] == "11,235"
    assert (shown["trainer's step"], shown["replica's step"]) == ("7", "0 (7 behind)")
    assert "lost in capture" not in run_figures({"step": 7}, None)


def test_where_a_chain_is_watched_is_told(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_command.read_chain(run).watched is None
    status_command.run(run.root, as_json=False)
    assert "watched at" not in capsys.readouterr().out
    listening = structs.replace(CONFIG, watch=WatchConfig(listen="127.0.0.1:9470"))
    run.config.write_bytes(encode_config(listening))
    status_command.run(run.root, as_json=False)
    assert "watched at http://127.0.0.1:9470/" in capsys.readouterr().out
