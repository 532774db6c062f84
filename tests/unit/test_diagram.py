"""The picture of a job: well-formed, alone in its file, readable without colours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import (
    DRAWS_SVG,
    NOT_A_PICTURE,
    NOTHING_TO_DRAW,
)
from flowcheck.ops.analysis.analyze_command import run
from flowcheck.ops.analysis.communicator_summary import (
    CommunicatorSummary,
    Connection,
    MirroredLink,
    ProtocolTraffic,
    summarize_communicators,
)
from flowcheck.ops.analysis.communicator_svg import MOST_NODES, communicators_svg, nodes_of
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.analysis.mirror_coverage import AllReduceShape, coverage_of
from flowcheck.ops.lifecycle.status_command import _draw
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.learned_job import encode_job

DATA = Path(__file__).resolve().parents[1] / "data"
SVG = "{http://www.w3.org/2000/svg}"


def ring(ranks: int, senders: list[int], channels: int = 1, number: int = 0) -> CommunicatorSummary:
    """A communicator of which these links are mirrored."""
    links = [
        MirroredLink(
            sender=sender,
            receiver=(sender + 1) % ranks,
            connections=tuple(
                Connection(
                    channel=channel,
                    queue_pairs=(0x100 + channel,),
                    source=f"10.77.0.{sender + 1}",
                    destination=f"10.77.0.{(sender + 1) % ranks + 1}",
                    protocols=("LL", "Simple"),
                    messages=10,
                    bytes=1000,
                )
                for channel in range(channels)
            ),
        )
        for sender in senders
    ]
    shape = AllReduceShape(
        bytes=1 << 20,
        element_bytes=4,
        extra_sends=0,
        ranks=ranks,
        channels=channels,
        protocol=Protocol.SIMPLE,
        nccl_era=NcclEra.V2_29,
    )
    return CommunicatorSummary(
        number=number,
        ranks=ranks,
        ring=True,
        channels=channels,
        eras=(NcclEra.V2_29,),
        assumed=("a <guess> & more",),
        links=tuple(links),
        protocols={"LL": ProtocolTraffic(collectives=3, bytes=30)},
        kinds={},
        coverage=coverage_of(shape, senders),
    )


PICTURES = {
    "two": [ring(2, [0, 1], 2)],
    "three": [ring(4, [3, 0]), ring(512, [7, 8, 100], 4, 1), ring(2, [0], 1, 2)],
    "sixteen": [ring(16, list(range(16)))],
    "nothing": [],
}


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def drawn(root: ElementTree.Element, kind: str) -> int:
    return sum(kind in (e.get("class") or "").split() for e in root.iter(f"{SVG}path"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_whole_and_needs_nothing_outside_itself(name: str) -> None:
    text = communicators_svg(PICTURES[name], 'Rings <of> "all" & sundry')
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert re.findall(r"https?://\S+", text) == ['http://www.w3.org/2000/svg"']
    assert not re.search(r"href|<script|<image|@import|<foreignObject", text)
    ids = {element.get("id") for element in root.iter()} - {None}
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= ids
    assert root.findtext(f"{SVG}title") == 'Rings <of> "all" & sundry'
    panels = [g for g in root.iter(f"{SVG}g") if g.get("class") == "communicator"]
    assert len(panels) == len(PICTURES[name])


@pytest.mark.parametrize("name", PICTURES)
def test_there_is_no_colour(name: str) -> None:
    text = communicators_svg(PICTURES[name], "t")
    for colour in re.findall(r"#([0-9a-f]{3,6})\b", text):
        assert len(set(re.findall("..", colour) if len(colour) == 6 else colour)) == 1, colour


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_stands_outside_the_picture(name: str) -> None:
    root = ElementTree.fromstring(communicators_svg(PICTURES[name], "t"))
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x", 0)) <= width
        assert 0 <= float(element.get("y", 0)) <= height


def test_every_link_is_drawn_as_what_it_is_and_says_so_in_words() -> None:
    root = ElementTree.fromstring(communicators_svg([ring(4, [3, 0], 3)], "t"))
    assert (drawn(root, "seen"), drawn(root, "unseen")) == (2, 2)
    words = texts(root)
    assert words.count("mirrored") == 2
    assert words.count("ch 0-2") == 2
    assert words.count("not seen") == 1
    for host in ("10.77.0.1", "10.77.0.2", "10.77.0.4"):
        assert host in words
    # Chunks 0 and 1 are each lacking on one of the two links.
    cells = [e.get("class") for e in root.iter(f"{SVG}rect") if "chunk" in (e.get("class") or "")]
    assert cells == ["box chunk once"] * 2 + ["box chunk twice"] * 2
    assert (words.count("1x"), words.count("2x")) == (2, 2)


def test_a_chunk_that_nothing_shows_has_a_mark_of_its_own() -> None:
    words = texts(ElementTree.fromstring(communicators_svg([ring(3, [0])], "t")))
    assert (words.count("-"), words.count("1x")) == (1, 2)


def test_a_long_ring_is_drawn_where_it_was_seen() -> None:
    nodes = nodes_of(ring(512, [7, 8, 100]))
    assert len(nodes) <= MOST_NODES
    assert [index for index, _ in nodes if index is not None] == [7, 8, 9, 100, 101]
    assert [below for index, below in nodes if index is None] == ["417 ranks", "90 ranks"]


def test_analyze_draws_what_it_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.svg"
    assert run([DATA / "four-ranks-ll128.pcapng"], svg=file, as_json=True) == 0
    capsys.readouterr()
    root = ElementTree.parse(file).getroot()
    assert (drawn(root, "seen"), drawn(root, "unseen")) == (2, 2)
    assert "10.77.0.4" in texts(root)


def test_the_job_that_a_chain_learned_is_drawn_as_analyze_draws_it(tmp_path: Path) -> None:
    tape = read_capture_files([DATA / "three-ranks-simple.pcapng"])
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None
    (learned,), (read,) = summarize_learned_job(reading.job), summarize_communicators(reading)
    assert learned.coverage is not None and read.coverage is not None
    assert learned.coverage.bytes == max(op.work_bytes for op in reading.job.each)
    assert learned.coverage.chunk_links == read.coverage.chunk_links
    assert [gain.links for gain in learned.coverage.gains] == [(1,)]
    assert [(link.sender, link.sources, link.destinations) for link in learned.links] == [
        (link.sender, link.sources, link.destinations) for link in read.links
    ]
    where = RunDir(tmp_path)
    file = tmp_path / "job.svg"
    with refused_as(NOTHING_TO_DRAW, kind=ConfigError):
        _draw(where, file)
    where.learned_job.parent.mkdir(parents=True, exist_ok=True)
    where.learned_job.write_bytes(encode_job(reading.job))
    _draw(where, file)
    root = ElementTree.parse(file).getroot()
    assert drawn(root, "seen") == 2
    # Two eras place its bytes alike, and the job does not tell which one it is.
    assert "Communicator 0: a ring of 3 ranks, 1 channel" in texts(root)
    assert any("in each iteration" in words for words in texts(root))


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="no rsvg-convert (librsvg2-bin)")
@pytest.mark.parametrize("name", PICTURES)
def test_a_renderer_takes_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(communicators_svg(PICTURES[name], "t"))
    words = ["rsvg-convert", str(tmp_path / "a.svg"), "-o", str(tmp_path / "a.png")]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["analyze", "status", "ports", "plan-loss", "fleet figures"])
def test_a_name_of_another_kind_of_picture_is_refused_before_any_work(
    tmp_path: Path, command: str
) -> None:
    file = {"analyze": [str(DATA / "four-ranks-ll128.pcapng")], "ports": ["no-such-layout"]}
    words = [*command.split(), *file.get(command, ()), "--svg", str(tmp_path / "a.PNG")]
    with refused_as(DRAWS_SVG, kind=ConfigError, key="--svg"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "a.PNG").exists()


def test_a_capture_that_is_named_as_the_picture_is_not_written_over(tmp_path: Path) -> None:
    capture = tmp_path / "job.pcapng"
    capture.write_bytes((DATA / "four-ranks-ll128.pcapng").read_bytes())
    with refused_as(NOT_A_PICTURE, kind=ConfigError, key="--svg"):
        run([capture], svg=capture, as_json=True)
    assert capture.read_bytes() == (DATA / "four-ranks-ll128.pcapng").read_bytes()
    for _ in range(2):
        assert run([capture], svg=tmp_path / "job.svg", as_json=True) == 0
