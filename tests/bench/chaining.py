"""The whole chain: a capture file to a filled gradient, and the processes of a replay."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.extracting import install
from bench.load import Load, write_pcap
from bench.measure import FRAME_BYTES, Figure, Scale, memory, wall_seconds
from flowcheck.lab.synthetic_traffic import synthetic_job
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.staging_file import Staging

SLOTS = 1 << 13
BATCH = 1 << 10
TARGET = 0.5


def figures(scale: Scale, before: Sequence[Figure]) -> Iterator[Figure]:
    for pmtu_bytes in FRAME_BYTES:
        load = Load(scale.frames(pmtu_bytes), 8, pmtu_bytes)
        with memory(0) as folder:
            count = write_pcap(folder / "load.pcap", load)
            yield _one_core(scale, folder, load, count, _bound(before, FRAME_BYTES[pmtu_bytes]))
    yield from _processes(scale)


def _bound(before: Sequence[Figure], frame_bytes: int) -> float | None:
    """Million frames/s one core could do: the stages' own figures of this run, added up as time.

    The copy is the non-temporal one, parse checks ICRCs on 10 flows, extract is LL by plan.
    """
    wanted = {
        f"capture copy, {frame_bytes} B": "CPU, slots filled",
        f"parse, {frame_bytes} B": "ICRC by",
        f"extract LL, {frame_bytes} B": "placed by plan",
    }
    nanoseconds = []
    for stage, what in wanted.items():
        found = [f for f in before if f.stage == stage and f.what.startswith(what)]
        if not found:
            return None
        nanoseconds.append(found[0].ns_per_frame)
    return 1e3 / sum(nanoseconds)


def _one_core(scale: Scale, folder: Path, load: Load, count: int, bound: float | None) -> Figure:
    """Read, parse (ICRC on) and extract in turn."""
    runs = sorted(
        (_once(folder, load, count) for _ in range(scale.repeats + 1)),
        key=lambda shares: sum(shares.values()),
    )
    shares = runs[len(runs) // 2]
    rate = count / sum(shares.values()) / 1e6
    parts = ", ".join(f"{name} {value / count * 1e9:.0f}" for name, value in shares.items())
    return Figure(
        f"chain, {FRAME_BYTES[load.pmtu_bytes]} B",
        "file to gradient on one core, LL, ICRC on",
        rate,
        "M frames/s",
        rate / bound if bound else None,
        "copy + parse + extract alone",
        TARGET if bound else None,
        f"ns a frame: {parts}",
        1e3 / rate,
    )


def _once(folder: Path, load: Load, count: int) -> dict[str, float]:
    """Seconds per stage."""
    spent = dict.fromkeys(("read", "parse", "extract"), 0.0)
    for name in ("ring", "flows", "staging", "shard"):
        (folder / name).unlink(missing_ok=True)
    with (
        FrameRing.create(folder / "ring", slots=SLOTS) as ring,
        FlowTable.create(folder / "flows", messages=1 << 16) as flows,
        Staging.create(
            folder / "staging",
            messages=1 << 16,
            data_bytes=64 << 20,
            sends=2 * load.rounds * load.flows,
            segments=2 * load.rounds * load.flows,
        ) as staging,
        GradientShard.create(
            folder / "shard", gradient_bytes=load.rounds * load.flows * load.data_bytes
        ) as shard,
        PcapSource(folder / "load.pcap") as source,
        Parser(ring, flows) as parser,
        Extractor(ring, flows, staging, shard) as extractor,
    ):
        shard.gradient(0)[:] = 0
        shard.begin(0, 1)
        commit = ring.capture_commit()
        while ring.tail < count:
            moments = [time.thread_time()]
            source.read_into(ring, BATCH, commit)
            moments.append(time.thread_time())
            parser.parse(BATCH)
            moments.append(time.thread_time())
            if ring.tail == 0:
                install(extractor, load)
                moments[-1] = time.thread_time()
            extractor.extract(BATCH)
            moments.append(time.thread_time())
            for n, name in enumerate(spent):
                spent[name] += moments[n + 1] - moments[n]
        assert ring.counters()["extract"]["placed_bytes"] == shard.gradient_bytes
    return spent


def _processes(scale: Scale) -> Iterator[Figure]:
    """`flowcheck replay` of a DDP job: start of the processes and learning included."""
    stage = "chain, processes"
    rows = 100 if scale.quick else 400
    job = synthetic_job.SyntheticJob(shapes=((rows, 1000), (1000,)), steps=6)
    frames = synthetic_job.make_traffic(job).frames
    with memory(0) as folder:
        capture = folder / "job.pcap"
        synthetic_job.write_pcap(capture, frames)
        command = [sys.executable, "-m", "flowcheck", "replay", str(capture), "--source", "file"]
        command += ["--optimizer", "adamw", "--lr", "1e-4", "--json"]
        outputs: list[str] = []

        def replay() -> None:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                raise RuntimeError((done.stderr.strip().splitlines() or ["replay failed"])[-1])
            outputs.append(done.stdout)

        try:
            taken = wall_seconds(replay, 1)
        except RuntimeError as error:
            yield Figure(stage, "flowcheck replay", 0, "absent", note=str(error)[:100])
            return
    told = json.loads(outputs[-1])
    note = f"{taken:.1f} s in all, steps {told.get('steps', told.get('step', '?'))}"
    yield Figure(
        stage,
        f"replay of {len(frames)} frames, start included",
        len(frames) / taken,
        "frames/s",
        note=note,
    )
