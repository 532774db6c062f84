"""Staging that is too small for what comes before the job is learned is told as that."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowcheck.config import StagingConfig
from flowcheck.findings.catalog.job_selection_reasons import NO_READING_YET
from flowcheck.findings.catalog.lost_steps import STAGING_OVERRUN
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.job_learning.learning_status import reasons_with_traffic
from flowcheck.stages.staged_messages.staging_space import staging_overrun

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "two-ranks-ll.pcapng"


@pytest.mark.parametrize("records", [4, 4096])
def test_what_found_no_room_is_counted_and_the_setting_named(shm: Path, records: int) -> None:
    with (
        PcapSource(CAPTURE) as source,
        FrameRing.create(shm / "ring", slots=4096) as ring,
        FlowTable.create(shm / "flows", messages=16384) as flows,
        Staging.create(
            shm / "staging",
            messages=16384,
            data_bytes=64 << 20,
            records=records,
            held=64,
            sends=1,
            segments=1,
        ) as staging,
        Parser(ring, flows) as parser,
        Extractor(ring, flows, staging, block=False) as extractor,
    ):
        commit = ring.capture_commit()
        while not (source.ended and ring.tail == ring.head):
            source.read_into(ring, 4096, commit)
            parser.parse(4096)
            extractor.extract(4096)
        dropped = ring.counters()["extract"]["staging_full_packets"]
        said = staging_overrun([extractor])
        assert bool(dropped) == (records == 4)
        if dropped:
            assert said is not None and said.is_any_of(STAGING_OVERRUN)
            assert (
                said.arguments["packets"] == dropped
                and "[staging] size_bytes" in f"{said} {said.remedy}"
            )
            why_not = (NO_READING_YET(),)
            assert reasons_with_traffic(why_not, [extractor], first=True)[:2] == (said, *why_not)
        else:
            assert said is None
        assert hasattr(StagingConfig(), "size_bytes"), "the setting that the remedy names"
