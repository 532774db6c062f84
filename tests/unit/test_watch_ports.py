"""Switch ports that a job file states to be mirrored: at which ends of which links they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config import MirrorConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import NOT_AN_ADDRESS
from flowcheck.ops.watch.state.diagram_data import diagrams
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "three-ranks-simple.pcapng"


def test_a_port_is_named_at_the_end_where_it_is_mirrored_and_at_no_other() -> None:
    tape = read_capture_files([CAPTURE])
    job = read_stream(tape.flows, tape.messages).job
    assert job is not None
    (plain,) = diagrams(job)
    assert plain.links and not any(link.rx or link.tx for link in plain.links)
    host = plain.links[0].sources[0]
    ways = (("rx", "a 1"), ("tx", "b 2"), ("both", "c 3"))
    mirrors = [MirrorConfig(port=port, host=host, direction=way) for way, port in ways]
    mirrors.append(MirrorConfig(port="d 4", host="192.0.2.9", direction="both"))
    (told,) = diagrams(job, mirrors)
    assert any(link.rx for link in told.links)
    for link in told.links:
        assert link.rx == (("a 1", "c 3") if host in link.sources else ())
        assert link.tx == (("b 2", "c 3") if host in link.destinations else ())


@pytest.mark.parametrize("host", ["leaf0", "10.0.0.1:4791", ""])
def test_a_host_is_an_address(host: str) -> None:
    with refused_as(NOT_AN_ADDRESS, kind=ConfigError, key="mirror.host"):
        MirrorConfig(port="p", host=host)
