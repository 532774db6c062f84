"""What lies in a capture's place is named, with a command that a shell takes and that helps."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import re
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch
from support.refused_as import refused_as

from flowcheck.errors import CaptureError, ConfigError
from flowcheck.findings.catalog import capture_file_problems as problems
from flowcheck.findings.catalog.refused_files import TEXT_IS_CHECKPOINT
from flowcheck.findings.finding import Entry, Finding
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.untrusted_text import decode_text

FRAMES = 3
HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1)
RECORD = struct.pack("<IIII", 1, 0, 60, 60) + bytes(60)
CAPTURE = HEADER + FRAMES * RECORD


def refused(path: Path) -> Finding:
    with pytest.raises(CaptureError) as caught, PcapSource(path) as source:
        source.count()
    return caught.value.finding


@pytest.mark.parametrize(
    ("name", "pack", "program"),
    [
        ("job.pcap.gz", gzip.compress, "gzip"),
        ("job of today", gzip.compress, "gzip"),
        ("job.pcap.xz", lzma.compress, "xz"),
        ("job.pcap.bz2", bz2.compress, "bzip2"),
    ],
)
def test_the_command_unpacks_a_compressed_capture_and_overwrites_nothing(
    tmp_path: Path, name: str, pack: object, program: str
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(CAPTURE))  # type: ignore[operator]
    found = refused(path)
    assert found.is_any_of(problems.IS_COMPRESSED) and found.arguments["program"] == program
    subprocess.run(str(found.arguments["command"]), shell=True, check=True, timeout=30)
    (unpacked,) = set(tmp_path.iterdir()) - {path}
    assert path.exists() and unpacked.suffix == ".pcap"
    with PcapSource(unpacked) as source:
        assert source.count() == FRAMES


def test_an_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("job.pcap", CAPTURE)
    found = refused(path)
    assert found.is_any_of(problems.IS_COMPRESSED) and found.arguments["program"] == "zip"


def saved_by(kind: str, path: Path) -> None:
    state = {"weight": torch.arange(6.0)}
    match kind:
        case "torch":
            torch.save(state, path)
        case "old torch":
            torch.save(state, path, _use_new_zipfile_serialization=False)
        case "safetensors":
            path.write_bytes(safetensors.torch.save(state))
        case "npz":
            with path.open("wb") as file:
                numpy.savez(file, weight=state["weight"].numpy())
        case "npy":
            with path.open("wb") as file:
                numpy.save(file, state["weight"].numpy())
        case _:
            path.write_bytes(pickle.dumps({"weight": [1.0]}, protocol=int(kind)))


KINDS = ("torch", "old torch", "safetensors", "npz", "npy", "2", "3", "4", "5")


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_not_told_to_be_unpacked(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "step-5.pt"
    saved_by(kind, path)
    found = refused(path)
    assert found.is_any_of(problems.IS_CHECKPOINT), found
    assert "unzip" not in found.remedy and "tcpdump" in found.remedy
    with pytest.raises(ConfigError) as of_text:
        decode_text("JOB.toml", path, path.read_bytes(), ending=".toml")
    right = of_text.value.finding.arguments["right"]
    assert isinstance(right, Finding) and right.is_any_of(TEXT_IS_CHECKPOINT)


@pytest.mark.parametrize(
    ("content", "entry", "words"),
    [
        (b"", problems.IS_EMPTY, "is empty"),
        (b"\xd4\xc3\xb2\xa1", problems.IS_TOO_SHORT, "4 bytes"),
        (HEADER[:20], problems.IS_TOO_SHORT, "20 bytes"),
        (b"22:13:20.000002 IP6 fe80::1 > fe80::2: UDP\n" * 9, problems.IS_TEXT, "22:13:20.0000"),
        ("<p>h\xfcbsch</p>\n".encode() * 60, problems.IS_TEXT, "<p>"),
        (b"\x01\x02\xff\xfe" * 9, problems.IS_NO_CAPTURE, "01 02 ff fe"),
        (HEADER[:20] + struct.pack("<I", 276), problems.OTHER_LINK_TYPE, "tcpdump -i any"),
        (HEADER[:20] + struct.pack("<I", 0), problems.OTHER_LINK_TYPE, "BSD loopback"),
        (b"\xd4\xc3\xb2\xa1\3\0" + HEADER[6:], problems.OTHER_PCAP_VERSION, "version 3"),
    ],
)  # fmt: skip
def test_what_is_no_capture_is_named_with_what_to_do(
    tmp_path: Path, content: bytes, entry: Entry, words: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    found = refused(path)
    assert found.is_any_of(entry) and words in str(found) and str(path) in str(found)
    assert "tcpdump" in found.remedy or "editcap" in found.remedy
    assert not re.search(r"\(E[A-Z]{3,}\)|Invalid argument|Bad message", str(found))


@pytest.mark.parametrize("link", [0, 276])
def test_an_interface_of_pcapng_that_is_not_ethernet_is_no_tear(tmp_path: Path, link: int) -> None:
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, link, 0, 65535, 20)
    path = tmp_path / "any.pcapng"
    path.write_bytes(section + interface)
    assert refused(path).is_any_of(problems.OTHER_LINK_TYPE)
    with PcapSource(path) as source:
        for _ in range(2):  # not the end of the file, at a second look either
            with refused_as(problems.OTHER_LINK_TYPE, kind=CaptureError, number=link):
                next(source.frames())


def test_a_torn_capture_is_read_after_the_cut_that_its_remedy_states(tmp_path: Path) -> None:
    path = tmp_path / "torn.pcap"
    path.write_bytes(CAPTURE[:-7])
    found = refused(path)
    assert found.is_any_of(problems.IS_TORN)
    byte, frames = found.arguments["byte"], found.arguments["frames"]
    assert (byte, frames) == (len(HEADER) + (FRAMES - 1) * len(RECORD), FRAMES - 1)
    assert f"head -c {byte} {path} > NEW" in found.remedy
    path.write_bytes(path.read_bytes()[: int(str(byte))])
    with PcapSource(path) as source:
        assert source.count() == frames


def test_a_missing_capture_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    for name in ("b.pcap", "a.pcapng", "notes.txt"):
        (tmp_path / name).touch()
    found = refused(tmp_path / "c.pcap")
    assert found.is_any_of(problems.IS_MISSING)
    assert found.arguments["there"] == ("a.pcapng", "b.pcap")
    assert str(found).endswith(": a.pcapng, b.pcap")


def test_a_missing_capture_with_none_beside_it_is_told_not_to_exist(tmp_path: Path) -> None:
    for path in (tmp_path / "c.pcap", tmp_path / "none" / "c.pcap"):
        found = refused(path)
        assert found.is_any_of(problems.IS_MISSING)
        assert str(found).startswith(f"{path}: does not exist; ")
        assert "has no capture file" not in str(found)
    assert "that folder does not exist" in str(found)
