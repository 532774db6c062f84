"""--json, of every command: an error is one JSON object on stderr and nothing on stdout; a success
is one JSON document on stdout and nothing on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scapy.all as scapy
from test_cli import flowcheck
from test_remedies import COMMANDS

DATA = Path(__file__).resolve().parents[1] / "data"
CAPTURE = DATA / "two-ranks-ll.pcapng"
GROUPS = {"", "switch", "lab", "fleet"}
VERBS = sorted(COMMANDS.keys() - GROUPS)
RATES = ["--source-gbps", "1", "--monitor-gbps", "1"]
PLANNED = ["--set", "in_features=8", "--set", "out_features=8"]
CHECKED = ["--os", "none", "--source", "e", "--monitor", "f", *RATES]
REFUSED = {
    "analyze": ["NONE"],
    "audit": ["NONE", "--run", "NONE"],
    "base": ["NONE", "--run", "NONE"],
    "doctor": ["--need-gib", "-1"],
    "down": ["--run", "NONE"],
    "fleet check": ["NONE"],
    "fleet down": ["NONE"],
    "fleet figures": ["--svg", "NONE/x.svg"],
    "fleet node": ["--state", "NONE"],
    "fleet plan": ["NONE"],
    "fleet restore": ["NONE", "--out", "NONE.pt"],
    "fleet drill": ["NONE"],
    "fleet status": ["NONE"],
    "fleet up": ["NONE"],
    "lab cost": ["--hosts", "1"],
    "lab down": ["--name", "a/b"],
    "lab record": ["--out", "NONE", "--hosts", "1"],
    "lab status": ["again"],
    "lab train": ["--hosts", "1"],
    "lab up": ["--hosts", "0"],
    "plan": ["NONE.toml"],
    "plan-loss": ["--gradient-bytes", "-1"],
    "ports": ["NONE"],
    "replay": ["NONE"],
    "restore": ["--out", "NONE", "--run", "NONE"],
    "serve": ["--run", "NONE"],
    "stage": ["parse", "--run", "NONE"],
    "status": ["--run", "NONE"],
    "switch apply": ["--os", "none", "--source", "e1"],
    "switch check": CHECKED,
    "switch list": ["again"],
    "switch remove": ["--os", "none"],
    "switch render": ["--os", "none", "--source", "e1"],
    "top": ["--run", "NONE"],
    "up": ["NONE"],
    "verify": ["NONE"],
    "watch": ["--listen", "nowhere"],
}
"""{command: arguments that it refuses}; NONE: a path where nothing is."""


def object_of(err: str) -> dict[str, object]:
    """The one line on stderr."""
    assert err.count("\n") == 1, err
    made: dict[str, object] = json.loads(err)
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_line_that_cannot_be_read_is_one_object_on_stderr(verb: str) -> None:
    code, out, err = flowcheck(*verb.split(), "--frob", "--json")
    assert (code, out) == (2, "")
    assert object_of(err).keys() >= {"message", "finding", "remedy", "exit_code"}


def test_every_command_has_the_option_and_a_refusal_here() -> None:
    assert [verb for verb in VERBS if "--json" not in COMMANDS[verb]] == []
    assert REFUSED.keys() == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_is_one_object_on_stderr(verb: str, tmp_path: Path) -> None:
    words = [one.replace("NONE", str(tmp_path / "none")) for one in REFUSED[verb]]
    code, out, err = flowcheck(*verb.split(), *words, "--json")
    assert (code, out) == (2, ""), out + err
    told = object_of(err)
    assert told["exit_code"] == 2 and isinstance(told["finding"], dict)
    assert flowcheck(*verb.split(), *words)[0] == 2, "as without --json"


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", CAPTURE],
        ["plan", "torch.nn:Linear", *PLANNED, "--world", "2"],
        ["plan-loss", "--gradient-bytes", "1e6", "--simulate", "10"],
        ["fleet", "plan", "--nodes", "7"],
        ["ports", DATA / "ports" / "sixteen-nodes.toml"],
        ["switch", "list"],
        ["switch", "render", "--os", "eos", "--source", "Ethernet1/1", "--monitor", "Ethernet2/1"],
        ["status", "--leftovers"],
        ["doctor"],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_success_says_nothing_on_stderr(words: list[str | Path]) -> None:
    code, out, err = flowcheck(*words, "--json")
    assert code in (0, 1) and err == "", err
    json.loads(out)


def test_notes_on_a_capture_stand_in_the_json_alone(tmp_path: Path) -> None:
    """Frames that the capture cut."""
    packets, made = scapy.rdpcap(str(CAPTURE)), tmp_path / "cut.pcap"
    for packet in packets:
        packet.wirelen = len(bytes(packet))
    cut = [packet.__class__(bytes(packet)[:128]) for packet in packets]
    for packet, whole in zip(cut, packets, strict=True):
        packet.wirelen, packet.time = whole.wirelen, whole.time
    scapy.wrpcap(str(made), cut)
    code, out, err = flowcheck("analyze", made, "--json")
    assert (code, err) == (0, "")
    notes = json.loads(out)["notes"]
    assert notes and all(note["code"] and note["sentence"] for note in notes)
    spoken = flowcheck("analyze", made)[2]
    assert notes[0]["sentence"] in spoken, "without --json it is on stderr"
