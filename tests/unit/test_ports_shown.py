"""The choice as a table, JSON and a picture; hostile names in them."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.port_layouts import SIXTEEN, choose, layout
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli.main import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirrored_ports import GPU_AGAINST_DUMP
from flowcheck.findings.catalog.refused_mirror_sessions import NOT_A_PORT_NAME
from flowcheck.ops import mirror_ports
from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest, make_mirror_plan
from flowcheck.ops.mirror_ports.ports_report import print_mirror_plan
from flowcheck.ops.mirror_ports.ports_svg import svg_of
from tests.unit.test_ports_dumps import LAYOUT, TOPOLOGY
from tests.unit.test_ports_dumps import choose as choose_by_dump


def test_names_that_are_hostile_stay_names(tmp_path: Path) -> None:
    evil = '</text><script>alert(1)</script>\x1b[2J[bold]&"'
    tree = layout()
    tree["cable"][0]["switch"] = tree["monitor"][0]["switch"] = evil
    tree["monitor"][0]["machine"] = evil
    found = choose(tmp_path, tree)
    root = ElementTree.fromstring(svg_of(found))
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert "\x1b" not in svg_of(found)
    with refused_as(NOT_A_PORT_NAME, kind=ConfigError, key="cable.ports"):
        bad = copy.deepcopy(tree)
        bad["cable"][0]["ports"] = [f"Ethernet{n}; reload" for n in range(4)]
        choose(tmp_path, bad, os="eos")


def test_a_terminal_gets_no_escape_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = layout()
    tree["cable"][0]["switch"] = tree["monitor"][0]["switch"] = "\x1b[2J[red]leaf"
    monkeypatch.setenv("COLUMNS", "200")
    print_mirror_plan(choose(tmp_path, tree))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "[red]leaf" in told


def test_the_picture_tells_by_shape_and_word(tmp_path: Path) -> None:
    tree = layout(nodes=2, monitors=(400.0,))
    tree["cable"] = [
        {"nic": 0, "nodes": "0", "switch": "leaf", "ports": "p1", "gbps": 100},
        {"nic": 0, "nodes": "1", "switch": "far", "ports": "p2", "gbps": 100},
    ]
    root = ElementTree.fromstring(svg_of(choose(tmp_path, tree)))
    shapes = [one.get("class") for one in root.iter() if one.tag.endswith("polygon")]
    assert sorted(filter(None, shapes)) == ["port rx", "port tx"]
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    assert "rx" in texts and "tx" in texts
    assert any("leaf p1:rx (rx: what node 0 sends by NIC 0)" in text for text in texts)
    nodes = [one for one in root.iter() if "node" in (one.get("class") or "").split()]
    assert len(nodes) == 2 and all("assumed" in (n.get("class") or "") for n in nodes)


def test_the_verb_prints_a_table_json_and_a_picture(tmp_path: Path) -> None:
    svg = tmp_path / "ports.svg"
    done = CliRunner().invoke(app, ["ports", str(SIXTEEN), "--json", "--svg", str(svg)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["least"], told["exact"], len(told["pairs"])) == (16, True, 16)
    assert all(ring["assumed"] for ring in told["rings"]) and told["assumed"]
    root = ElementTree.parse(svg).getroot()
    left, _, wide, _ = map(float, root.attrib["viewBox"].split())
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == 16 * (len(circles) // 16) > 0
    for one in circles:
        middle, radius = float(one.attrib["cx"]), float(one.attrib["r"])
        assert left + 2 < middle - radius < middle + radius < wide - 2
    done = CliRunner().invoke(app, ["ports", str(SIXTEEN), "--os", "eos"], env={"COLUMNS": "30"})
    assert "No choice has fewer." in done.stdout
    row = next(line for line in done.stdout.splitlines() if "node 1 NIC 7" in line)
    assert row.split()[:2] == ["leaf7", "Ethernet2/1:rx"] and row.split()[-1] == "21.8"


def test_the_page_shows_the_example_and_what_is_printed_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    page = (Path(mirror_ports.__file__).parent / "README.md").read_text()
    (layout_of_it,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert layout_of_it == SIXTEEN.read_text()
    (table,) = re.findall(r"```text\n(.*?)\n \.\.\.\n```", page, re.DOTALL)
    print_mirror_plan(make_mirror_plan(PortsRequest(file=SIXTEEN)))
    told = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert table in told


def test_a_file_that_nccls_topology_dump_contradicts_is_told_so(tmp_path: Path) -> None:
    """The dump has GPU 0 beside NIC 1."""
    for gpu, said in ((0, True), (1, False)):
        layout = LAYOUT.replace("nic = 0,", f"nic = 0, gpus = [{gpu}],")
        assert layout != LAYOUT
        found = choose_by_dump(tmp_path, "tp = 2\n" + layout, graph=TOPOLOGY)
        against = GPU_AGAINST_DUMP(gpu=0, stated=0, nearest=1)
        assert (against in found.assumed) == said
