"""The fleet file with its chains: what is refused, and the job files that are written, judged by
tomllib, by the placement's definition and by what the chain's own job file states."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import Wanted, like, refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.config import job_from, load_job
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import fleet_running as told
from flowcheck.findings.catalog.fleet_plan import GROUPS_DIVIDE, PARTS_AND_NODES
from flowcheck.findings.catalog.refused_settings import FROM_TO, TOKEN_NEEDED, UNKNOWN_KEY
from flowcheck.fleet.toml_text import toml_text
from flowcheck.ops.fleet.checked_fleet import checked_fleet

JOB = """
run = "/run/flowcheck/own"
checkpoint = "saved"
[[source]]
interface = "lo"
[optimizer]
name = "adamw"
learning_rate = 1e-4
betas = [0.9, 0.95]
clip_norm = 1.0
[model]
names = ["fc.weight", "a \\"quoted\\" name"]
[persist]
target = "elsewhere"
every_steps = 5
"""

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_what_is_written_is_read_as_it_was(tree: dict[str, Any]) -> None:
    again = tomllib.loads(toml_text(tree))
    assert again == tree
    # 1 is neither 1.0 nor true.
    assert json.dumps(again, sort_keys=True) == json.dumps(tree, sort_keys=True)


def test_not_a_number_is_written_too() -> None:
    assert math.isnan(tomllib.loads(toml_text({"lr": math.nan}))["lr"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring0.toml").write_text(JOB)
    return tmp_path


def fleet_file(folder: Path, nodes: int = 2, head: str = "", chains: str = "", **more: str) -> Path:
    lines = [head]
    for at in range(nodes):
        lines.append(f'[[node]]\nname = "n{at}"\naddress = "127.0.0.1"\nport = {7400 + 20 * at}')
    lines.append(chains or '[[chain]]\njob = "ring0.toml"\nnode = "n0"\n')
    file = folder / "fleet.toml"
    file.write_text("\n".join(lines))
    return file


NODE = '[[node]]\nname = "n2"\naddress = "127.0.0.1"\n'
CHAIN = '[[chain]]\njob = "ring0.toml"\nnode = "n0"\n'
REFUSED: list[tuple[dict[str, Any], Wanted, str]] = [
    ({"chains": " "}, told.NO_CHAINS(), "chain"),
    ({"chains": CHAIN.replace("n0", "n7")}, told.UNKNOWN_NODE(("n0", "n1")), "chain[0].node"),
    ({"chains": CHAIN * 2}, told.CHAIN_TWICE(), "chain[1].name"),
    ({"chains": CHAIN + 'name = "a/b"\n'}, told.NOT_A_NAME(), "chain[0].name"),
    ({"head": 'name = "../x"\n'}, told.NOT_A_NAME(), "name"),
    ({"head": "ports = 1\n"}, UNKNOWN_KEY, "ports"),
    ({"chains": CHAIN + '[[node]]\nname = "n2"\n'}, told.NO_ADDRESS("n2"), "node[2].address"),
    (
        {"chains": CHAIN + '[[node]]\nname = "n2"\naddress = "10.0.0.9"\n'},
        TOKEN_NEEDED,
        "node[2].address",
    ),
    (
        {"chains": CHAIN + '[[node]]\nname = "n2"\naddress = "127.0.0.1"\nport = 7401\n'},
        told.ADDRESS_TWICE("n2"),
        "node[0].port",
    ),
    (
        {"chains": CHAIN + '[[node]]\nname = "n2"\naddress = "127.0.0.1"\nport = 7400\n'},
        told.ADDRESS_TWICE("n0"),
        "node[2].address",
    ),
    ({"chains": CHAIN + "[redundancy]\nreplication_factor = 3\n"}, PARTS_AND_NODES, "nodes"),
    (
        {"nodes": 3, "chains": CHAIN + '[redundancy]\nstrategy = "group"\n'},
        GROUPS_DIVIDE,
        "nodes",
    ),
    (
        {"chains": CHAIN + "[redundancy]\ndata_blocks = 1\nparity_blocks = 1\n", "nodes": 2},
        None,  # 1 + 1 blocks are two copies
        "",
    ),
    (
        {"chains": CHAIN + "[redundancy]\ndata_blocks = 2\nparity_blocks = 1\n", "nodes": 3},
        told.CODE_NOT_RUN(),
        "redundancy.data_blocks",
    ),
    ({"head": "port = 65536\n", "chains": CHAIN + NODE}, FROM_TO, "port"),
]


@pytest.mark.parametrize(("stated", "wanted", "key"), REFUSED)
def test_a_wrong_file_is_refused(
    folder: Path, stated: dict[str, Any], wanted: Wanted | None, key: str
) -> None:
    file = fleet_file(folder, **stated)
    if wanted is None:
        checked_fleet(file)
        return
    with refused_as(wanted, kind=ConfigError, key=key):
        checked_fleet(file)


TWO = '[[chain]]\njob = "ring0.toml"\nnode = "n0"\n[[chain]]\njob = "ring1.toml"\nnode = "%s"\n'


@pytest.mark.parametrize(
    ("first", "second", "node", "place"),
    [
        ('target = "a"', 'target = "./a/"', "n0", "a"),
        ('targets = ["a", "b", "c"]', 'targets = ["d", "e", "c"]', "n0", "c"),
        ('target = "s3://bucket/job"', 'target = "s3://bucket/job/"', "n1", "s3://bucket/job"),
        ('target = "a"', 'target = "file://{folder}/a"', "n0", "a"),
        ('target = "a"', 'target = "a"', "n1", None),
        ('target = "a"', 'target = "b"', "n0", None),
    ],
)
def test_two_chains_do_not_save_to_one_place(
    folder: Path, first: str, second: str, node: str, place: str | None
) -> None:
    for at, target in enumerate((first, second)):
        stated = JOB.replace('target = "elsewhere"', target.format(folder=folder))
        stated = stated.replace('"saved"', f'"saved{at}"')
        (folder / f"ring{at}.toml").write_text(stated)
    file = fleet_file(folder, chains=TWO % node)
    if place is None:
        checked_fleet(file)
        return
    named = place if "://" in place else str(folder / place)
    wanted = like(told.PLACE_TWICE, place=named, of="ring0")
    with refused_as(wanted, kind=ConfigError, key="chain[1].job"):
        checked_fleet(file)


@pytest.mark.parametrize(
    ("table", "entry"),
    [
        ("[serve]\nport = 0\n", told.FLEET_WRITES),
        ("[copies]\nport = 0\n", told.FLEET_WRITES),
    ],
)
def test_tables_that_the_fleet_writes_are_refused(folder: Path, table: str, entry: Any) -> None:
    (folder / "ring0.toml").write_text(JOB + table)
    with refused_as(entry, kind=ConfigError, key="chain.job"):
        checked_fleet(fleet_file(folder))


def test_several_jobs_are_taken_where_nothing_is_copied(folder: Path) -> None:
    (folder / "ring0.toml").write_text("jobs = 2\n" + JOB)
    with refused_as(told.NOT_ONE_JOB, kind=ConfigError):
        checked_fleet(fleet_file(folder))
    alone = "[redundancy]\nreplication_factor = 1\n"
    fleet = checked_fleet(fleet_file(folder, chains=CHAIN + alone))
    assert [one.name for one in fleet.chains] == ["ring0"]
    assert fleet.notes == (told.LOST_TOGETHER_WITH(chain="ring0", node="n0"),)


@pytest.mark.parametrize("strategy", ["ring", "group"])
def test_copies_lie_where_the_definition_puts_them_and_compute_as_their_chain(
    folder: Path, strategy: str
) -> None:
    """Six nodes, three copies; two chains on one node, one on another."""
    tables = "".join(
        f'[[chain]]\njob = "job{at}.toml"\nname = "c{at}"\nnode = "n{node}"\n'
        for at, node in enumerate((1, 1, 4))
    )
    for at in range(3):
        text = JOB.replace('"elsewhere"', f'"elsewhere{at}"').replace('"saved"', f'"saved{at}"')
        (folder / f"job{at}.toml").write_text(text)
    more = f'[redundancy]\nreplication_factor = 3\nstrategy = "{strategy}"\n'
    fleet = checked_fleet(fleet_file(folder, 6, chains=tables + more), epoch=5)
    holders = {1: {2, 3}, 4: {5, 0}} if strategy == "ring" else {1: {0, 2}, 4: {3, 5}}
    for at, node in enumerate((1, 1, 4)):
        copies = [own for own in fleet.chains if own.of == f"c{at}"]
        assert {own.node for own in copies} == {f"n{one}" for one in holders[node]}
    stated = load_job(folder / "ring0.toml")
    ports = set[str]()
    for own in fleet.chains:
        file = folder / f"{own.name}.toml"
        file.write_text(own.job)
        job = load_job(file)
        assert job == job_from(tomllib.loads(own.job))
        assert (job.optimizer, job.model) == (stated.optimizer, stated.model)
        assert job.run == own.run != stated.run and job.serve is not None
        assert own.served == f"http://127.0.0.1:{job.serve.port}"
        ports |= {own.served} | ({own.copied} if own.copied else set())
        first = next(one for one in fleet.chains if one.name == own.shard)
        stated = load_job(folder / f"job{own.shard[1:]}.toml")
        if own.of is None:
            assert job.source == stated.source and job.persist == stated.persist
            assert job.copies is not None and job.copies.epoch == 5
            assert own.copied == f"http://127.0.0.1:{job.copies.port}"
        else:
            assert job.gradients is not None and job.gradients.chains == (first.copied,)
            assert job.persist is None and job.checkpoint is None and not job.source
    assert len(ports) == len(fleet.chains) + 3 and not ports & set(fleet.keepers.values())
    assert len({own.run for own in fleet.chains}) == len(fleet.chains) == 9


def test_one_file_serves_the_plan_and_the_check(folder: Path) -> None:
    file = fleet_file(folder, 4)
    shown = CliRunner().invoke(app, ["fleet", "check", str(file), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    planned = CliRunner().invoke(app, ["fleet", "plan", str(file), "--json"])
    plan = json.loads(planned.output)
    (wanted,) = (one["holders"] for one in plan["shards"] if one["node"] == "n0")
    assert [own["node"] for own in found["chains"]] == wanted
    text = CliRunner().invoke(app, ["fleet", "check", str(file), "--show"])
    assert text.exit_code == 0 and "[gradients]" in text.output
