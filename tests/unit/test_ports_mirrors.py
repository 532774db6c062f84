"""The chosen ports as a job file names them, read back by the loader of job files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.port_layouts import Tree, choose, layout
from support.refused_as import Wanted, like, refused_as
from typer.testing import CliRunner

from flowcheck.cli.main import app
from flowcheck.config import MirrorConfig
from flowcheck.config.job_config import load_job
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    HOSTS_FOR_PORTS,
    IP_ADDRESS,
    MIRRORS_FILE_TAKEN,
    MIRRORS_NEED_MACHINE,
    NO_HOST,
)
from flowcheck.ops.mirror_ports.job_file_mirror_tables import (
    mirrors_of,
    mirrors_toml,
    write_mirrors,
)
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan

JOB = '[[source]]\ninterface = "eth1"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'


def stated(**more: object) -> Tree:
    tree = layout(**more)  # type: ignore[arg-type]
    tree["cable"][0]["hosts"] = f"10.0.0.{{1-{tree['nodes']}}}"
    return tree


def two_machines() -> Tree:
    """Two groups of one node each beside the other, whose copies end at a machine each."""
    tree = stated(nodes=4, monitors=(200.0, 200.0))
    tree |= {"gpus": 2, "tp": 2}
    tree["cable"].append(
        {"nic": 1, "switch": "far", "ports": "p{1-4}", "gbps": 100, "hosts": "10.0.1.{1-4}"}
    )
    tree["monitor"][1] |= {"switch": "far", "machine": "other"}
    return tree


def test_a_job_file_with_the_tables_behind_it_names_what_was_chosen(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    found = choose(tmp_path, stated())
    (place,) = write_mirrors(str(tmp_path / "mirrors.toml"), found)
    job.write_text(JOB + place.read_text())
    assert [(one.port, one.host, one.direction) for one in load_job(job).mirror] == [
        (f"leaf {pair.port}", f"10.0.0.{pair.node + 1}", pair.direction)
        for pair, _ in found.choice.placed
    ]
    write_mirrors(str(place), found)  # our own is written again
    job.write_text(JOB)
    with refused_as(MIRRORS_FILE_TAKEN, kind=ConfigError):
        write_mirrors(str(job), found)
    assert job.read_text() == JOB


def test_both_directions_of_a_port_are_one_table(tmp_path: Path) -> None:
    tree = stated(nodes=2)
    tree["cable"] = [
        {"nic": 0, "nodes": "0", "switch": "leaf", "ports": "a", "gbps": 50, "hosts": "fe80::1"},
        {"nic": 0, "nodes": "1", "switch": "far", "ports": "b", "gbps": 50},
    ]
    (own,) = mirrors_of(choose(tmp_path, tree), "flowcheck")
    assert own == MirrorConfig(port="leaf a", host="fe80::1", direction="both")


def test_each_machine_gets_the_ports_whose_copies_end_there(tmp_path: Path) -> None:
    (tmp_path / "layout.toml").write_text(toml_of(tmp_path, two_machines()))
    words = ["ports", str(tmp_path / "layout.toml"), "--mirrors"]
    with refused_as(MIRRORS_NEED_MACHINE, kind=ConfigError, machines=("flowcheck", "other")):
        app([*words, str(tmp_path / "all.toml")], standalone_mode=False)
    done = CliRunner().invoke(app, [*words, str(tmp_path / "of-{machine}.toml")])
    assert done.exit_code == 0, done.output
    for machine, switch in (("flowcheck", "leaf"), ("other", "far")):
        tables = tomllib.loads((tmp_path / f"of-{machine}.toml").read_text())["mirror"]
        assert {one["port"].split()[0] for one in tables} == {switch} and len(tables) == 2


def toml_of(folder: Path, tree: Tree) -> str:
    choose(folder, tree)
    return (folder / "layout.toml").read_text()


@pytest.mark.parametrize(
    ("hosts", "wanted"),
    [
        ("10.0.0.{1-3}", like(HOSTS_FOR_PORTS, hosts=3, ports=4)),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3", "n4"], IP_ADDRESS),
        (
            [],
            like(NO_HOST, key="cable.hosts", value="'Ethernet1'", switch="leaf"),
        ),
    ],
)
def test_hosts_that_are_wrong_or_missing_are_named(
    tmp_path: Path, hosts: object, wanted: Wanted
) -> None:
    tree = stated()
    tree["cable"][0]["hosts"] = hosts
    with refused_as(wanted, kind=ConfigError):
        write_mirrors(str(tmp_path / "m"), choose(tmp_path, tree))


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> MirrorPlan:
    return choose(tmp_path_factory.mktemp("layout"), stated())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_name_comes_back_as_it_was(chosen: MirrorPlan, name: str) -> None:
    own = tuple(
        (msgspec.structs.replace(pair, switch=name, port="1"), where)
        for pair, where in chosen.choice.placed
    )
    choice = msgspec.structs.replace(chosen.choice, placed=own)
    text = mirrors_toml(msgspec.structs.replace(chosen, choice=choice), "flowcheck")
    assert {one["port"] for one in tomllib.loads(text)["mirror"]} == {f"{name} 1"}
