"""Plans of a fleet: counts against every set of lost nodes, by holders written here from the
definitions of the strategies; closed forms at sizes that no enumeration reaches; domains against
every order of the nodes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import like, refused_as, says
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import fleet_plan as told
from flowcheck.findings.catalog.general_errors import FILE_MISSING
from flowcheck.findings.catalog.refused_settings import FROM_TO, ONE_OF, UNKNOWN_KEY, WRONG_TYPE
from flowcheck.findings.finding import Entry
from flowcheck.fleet.copy_placement import Redundancy, Strategy, place
from flowcheck.fleet.failure_domains import spread, spread_placement
from flowcheck.fleet.fleet_file import RedundancyConfig, load_fleet
from flowcheck.fleet.survival_odds import survival
from flowcheck.fleet.union_bound import union_bound
from flowcheck.ops.fleet.fleet_plan_report import decimals
from flowcheck.ops.fleet.planned_fleet import FleetRequest, make_fleet_plan

FEW = settings(max_examples=60, deadline=None)


def copies(count: int) -> Redundancy:
    return Redundancy(needed=1, spare=count - 1)


def holders(strategy: Strategy, nodes: int, parts: int, jump: int = 1) -> list[set[int]]:
    """[node] the nodes that hold parts of its shard, by the definition of the strategy."""
    if strategy is Strategy.RING:
        return [{(node + step) % nodes for step in range(parts)} for node in range(nodes)]
    if strategy is Strategy.JUMP:
        group = {node: (node % jump, node // (jump * parts)) for node in range(nodes)}
        return [{n for n in range(nodes) if group[n] == group[node]} for node in range(nodes)]
    tail = parts + nodes % parts if strategy is Strategy.MIXED else 0
    start = nodes - tail
    whole = [{n for n in range(start) if n // parts == node // parts} for node in range(start)]
    return whole + [{start + (at + s) % tail for s in range(parts)} for at in range(tail)]


def surviving(shards: list[set[int]], nodes: int, needed: int) -> list[int]:
    """[f] of all sets of f lost nodes, those that leave enough of each shard."""
    return [
        sum(
            all(len(one - set(gone)) >= needed for one in shards)
            for gone in itertools.combinations(range(nodes), f)
        )
        for f in range(nodes + 1)
    ]


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Strategy, int, Redundancy, int]:
    strategy = draw(st.sampled_from(list(Strategy)))
    needed, spare = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    jump = draw(st.integers(1, 3)) if strategy is Strategy.JUMP else 1
    parts, most = needed + spare, 11
    block = parts * jump if strategy in (Strategy.JUMP, Strategy.GROUP) else 1
    least = max(parts, block)
    sizes = [n for n in range(least, max(most, least) + 1) if n % block == 0]
    return strategy, draw(st.sampled_from(sizes)), Redundancy(needed=needed, spare=spare), jump


@FEW
@given(fleets(), st.randoms(use_true_random=False))
def test_counts_are_those_of_every_set_of_lost_nodes(
    fleet: tuple[Strategy, int, Redundancy, int], chance: object
) -> None:
    strategy, nodes, redundancy, jump = fleet
    if nodes > 12:
        return
    order = list(range(nodes))
    chance.shuffle(order)  # type: ignore[attr-defined]
    used = jump if strategy is Strategy.JUMP else None
    placement = place(order, strategy, redundancy, used)
    ours = holders(strategy, nodes, redundancy.parts, jump)
    wanted = {order[at]: {order[n] for n in one} for at, one in enumerate(ours)}
    assert {one[0]: set(one) for one in placement.shards} == wanted
    counts = surviving(ours, nodes, redundancy.needed)
    found = survival(placement)
    assert list(found.surviving_sets) == counts
    assert found.probability(nodes) == 0
    for f in range(nodes + 1):
        bound = union_bound(placement, f)
        if redundancy.needed == 1:
            assert bound is not None and bound <= Fraction(counts[f], comb(nodes, f))
        else:
            assert bound is None
    assert found.always == max(
        f for f in range(nodes + 1) if counts[: f + 1] == [comb(nodes, g) for g in range(f + 1)]
    )


@pytest.mark.parametrize("nodes", [16, 128, 1024])
def test_pairs_have_closed_forms_at_any_size(nodes: int) -> None:
    """Group: f of N / 2 pairs, one node of each. Ring: f of N places in a circle, no two beside
    each other (Kaplansky 1943)."""
    group = survival(place(range(nodes), Strategy.GROUP, copies(2)))
    ring = survival(place(range(nodes), Strategy.RING, copies(2)))
    for f in (0, 1, 2, 3, 7, nodes // 2, nodes // 2 + 1, nodes):
        assert group.surviving_sets[f] == comb(nodes // 2, f) * 2**f
        kept = Fraction(nodes, nodes - f) * comb(nodes - f, f) if f < nodes else 0
        assert ring.surviving_sets[f] == kept


@pytest.mark.parametrize("nodes", [15, 129, 1023])
def test_three_copies_in_groups_have_a_closed_form(nodes: int) -> None:
    """(1 + 3 x + 3 x^2)^(N / 3), by inclusion and exclusion over lost groups."""
    found = survival(place(range(nodes), Strategy.GROUP, copies(3)))
    for f in (2, 3, 6, 9, 14, nodes - 1):
        some = range(min(nodes, f) // 3 + 1)
        wanted = sum((-1) ** g * comb(nodes // 3, g) * comb(nodes - 3 * g, f - 3 * g) for g in some)
        assert found.surviving_sets[f] == wanted


BOUNDS = """
16 0.933333 0.800000 0.866667 0.600000
24 0.956522 0.869565 0.913043 0.739130
32 0.967742 0.903226 0.935484 0.806452
48 0.978723 0.936170 0.957447 0.872340
64 0.984127 0.952381 0.968254 0.904762
96 0.989474 0.968421 0.978947 0.936842
"""
"""N; groups with 2 and 3 lost; rings with 2 and 3: by the formula of the notebook of Gemini's
artefact that draws figure 9, m = 2."""


@pytest.mark.parametrize("line", BOUNDS.split("\n")[1:-1])
def test_the_bound_is_the_one_of_figure_9(line: str) -> None:
    size, *wanted = line.split()
    for at, strategy in enumerate((Strategy.GROUP, Strategy.RING)):
        placement = place(range(int(size)), strategy, copies(2))
        assert union_bound(placement, 1) == 1
        for lost in (2, 3):
            bound = union_bound(placement, lost)
            assert bound is not None and f"{float(bound):.6f}" == wanted[2 * at + lost - 2]
        assert union_bound(placement, 2) == survival(placement).probability(2)


def sharing(shards: list[tuple[int, ...]], of_node: tuple[str, ...]) -> bool:
    return any(max(Counter(of_node[n] for n in one).values()) > 1 for one in shards)


@FEW
@given(
    st.integers(4, 7).flatmap(lambda n: st.tuples(*[st.sampled_from("abcd")] * n)),
    st.sampled_from([Strategy.GROUP, Strategy.RING, Strategy.MIXED]),
    st.integers(2, 3),
)
def test_copies_are_apart_wherever_some_order_has_them_apart(
    of_node: tuple[str, ...], strategy: Strategy, count: int
) -> None:
    nodes = len(of_node)
    if strategy is Strategy.GROUP and nodes % count:
        return
    ours = holders(strategy, nodes, count)
    possible = any(
        not sharing([tuple(order[n] for n in one) for one in ours], of_node)
        for order in itertools.permutations(range(nodes))
    )
    placement = spread_placement({"rack": of_node}, nodes, strategy, copies(count), None)
    (found,) = spread(placement, {"rack": of_node})
    assert (found.shards_sharing == 0) is possible
    if found.unavoidable:
        assert not possible
    lost = {name: {n for n in range(nodes) if of_node[n] == name} for name in set(of_node)}
    fatal = sum(any(set(one) <= gone for one in placement.shards) for gone in lost.values())
    assert found.survived == len(lost) - fatal


def test_domains_that_lie_within_others_are_all_respected() -> None:
    """12 nodes, racks of 2 in power feeds of 4: three copies, each on another feed."""
    labels = {"rack": [f"r{n // 2}" for n in range(12)], "power": [f"p{n // 4}" for n in range(12)]}
    for strategy in (Strategy.GROUP, Strategy.RING):
        placement = spread_placement(labels, 12, strategy, copies(3), None)
        assert [one.shards_sharing for one in spread(placement, labels)] == [0, 0]
    labels["power"] = ["a"] * 6 + ["b"] * 6
    rack, power = spread(spread_placement(labels, 12, Strategy.GROUP, copies(3), None), labels)
    assert (rack.shards_sharing, rack.survived, power.survived) == (0, 6, 2)
    assert power.unavoidable and power.most_parts == 2


def request(**stated: object) -> FleetRequest:
    line = {key: stated.pop(key) for key in RedundancyConfig.__struct_fields__ if key in stated}
    common = {"file": None, "nodes": None, "lost": ()}
    return FleetRequest(**common | stated, stated=RedundancyConfig(**line))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stated", "entry"),
    [
        ({}, told.NO_NODES),
        ({"nodes": 0}, FROM_TO),
        ({"nodes": 1025}, FROM_TO),
        ({"nodes": 4, "replication_factor": 5}, told.PARTS_AND_NODES),
        ({"nodes": 4, "replication_factor": 0}, FROM_TO),
        ({"nodes": 4, "replication_factor": 2, "data_blocks": 2}, told.CODE_OR_COPIES),
        ({"nodes": 4, "data_blocks": 2}, told.CODE_WHOLE),
        ({"nodes": 7, "strategy": Strategy.GROUP}, told.GROUPS_DIVIDE),
        ({"nodes": 12, "replication_jump": 4}, told.JUMP_DIVIDES),
        ({"nodes": 8, "replication_jump": 2, "strategy": Strategy.RING}, told.JUMP_OF_OTHER),
        ({"nodes": 8, "lost": (9,)}, FROM_TO),
        (
            {"nodes": 64, "strategy": Strategy.RING, "data_blocks": 10, "parity_blocks": 4},
            told.TOO_MANY_STATES,
        ),
    ],
)
def test_what_allows_no_plan_is_refused(stated: dict[str, object], entry: Entry) -> None:
    with refused_as(entry, kind=ConfigError):
        make_fleet_plan(request(**stated))


@pytest.mark.parametrize(
    ("text", "entry", "key"),
    [
        ('[[node]]\nname = "a"\n[[node]]\nname = "a"\n', told.NODE_TWICE, "node[1].name"),
        ('[[node]]\nname = "a"\nrack = "r"\n[[node]]\nname = "b"\n', told.DOMAIN_MISSING, ""),
        ('[[node]]\nname = "a"\nrak = "r"\n', UNKNOWN_KEY, "node.rak"),
        ('[redundancy]\nstrategy = "grup"\n', ONE_OF, "redundancy.strategy"),
        ('[[node]]\nname = " "\n', told.NO_NAME, "node.name"),
        ('[[node]]\nname = "a"\nrack = ""\n', told.NO_NAME, "node.rack"),
        ("[redundancy]\nreplication_factor = 2.0\n", WRONG_TYPE, "redundancy.replication_factor"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(
    tmp_path: Path, text: str, entry: Entry, key: str
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with refused_as(like(entry, key=key) if key else entry, kind=ConfigError):
        load_fleet(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused_as(FILE_MISSING, kind=ConfigError):
        load_fleet(tmp_path / "none.toml")


def test_groups_beside_a_ring_cost_it_no_case() -> None:
    """82 groups of 12 and a ring of 16: sets of lost nodes of each part, multiplied by hand."""
    code = Redundancy(needed=8, spare=4)
    most = 8
    of_ring = survival(place(range(16), Strategy.RING, code)).surviving_sets
    sets = list(of_ring[: most + 1])
    for _ in range(82):
        sets = [
            sum(sets[f - lost] * comb(12, lost) for lost in range(min(f, code.spare) + 1))
            for f in range(most + 1)
        ]
    told_sets = survival(place(range(1000), Strategy.MIXED, code)).surviving_sets
    assert list(told_sets[: most + 1]) == sets and sets[5] < comb(1000, 5)
    with refused_as(like(told.TOO_MANY_STATES, key="nodes", value="1024"), kind=ConfigError):
        survival(place(range(1024), Strategy.RING, code))


def write_fleet(path: Path, racks: str, more: str = "") -> Path:
    nodes = [f'[[node]]\nname = "n{at}"\nrack = "{rack}"\n' for at, rack in enumerate(racks)]
    path.write_text(more + "".join(nodes))
    return path


def test_the_command_tells_the_plan_of_a_file(tmp_path: Path) -> None:
    file = write_fleet(tmp_path / "f.toml", "aabb", "[redundancy]\nreplication_factor = 2\n")
    made = CliRunner().invoke(app, ["fleet", "plan", str(file), "--lost", "2", "--json"])
    assert made.exit_code == 0, made.output
    plan = json.loads(made.stdout)
    (row,) = plan["survival"]
    assert Fraction(int(row["exact"]["numerator"]), int(row["exact"]["denominator"])) == 1 - (
        Fraction(2, comb(4, 2))
    )
    racks = dict(zip(plan["nodes"], "aabb", strict=True))
    assert all(len({racks[n] for n in one["holders"]}) == 2 for one in plan["shards"])
    assert plan["domains"][0]["survived"] == 2 and plan["notes"] == []
    assert (
        "ring" in CliRunner().invoke(app, ["fleet", "plan", str(file), "--strategy", "ring"]).output
    )


def test_notes_say_why_copies_share_a_domain(tmp_path: Path) -> None:
    file = write_fleet(tmp_path / "f.toml", "aaab")
    (note,) = make_fleet_plan(request(file=file)).notes
    assert says(note, like(told.DOMAIN_UNAVOIDABLE, largest="a", nodes=3, room=2))
    file = write_fleet(tmp_path / "f.toml", "aabb")
    (note,) = make_fleet_plan(request(file=file, replication_jump=1)).notes
    assert says(note, like(told.DOMAIN_OF_JUMP, shards=4))
    assert make_fleet_plan(request(file=file, replication_jump=2)).notes == ()
    with refused_as(told.NODES_TWICE, kind=ConfigError):
        make_fleet_plan(request(file=file, nodes=4))


def test_what_is_not_certain_never_shows_as_one() -> None:
    assert decimals(Fraction(10**12 - 1, 10**12)) == "0.999999999"
    assert decimals(Fraction(1)) == "1" and decimals(Fraction(0)) == "0"
    assert decimals(Fraction(1, 10**12)) == "1.00e-12"


def test_any_one_of_the_domains_is_told_as_one(tmp_path: Path) -> None:
    file = write_fleet(tmp_path / "f.toml", "aabb", "[redundancy]\nreplication_factor = 2\n")
    printed = CliRunner().invoke(app, ["fleet", "plan", str(file)]).output
    assert "any one of 2" in " ".join(printed.split())
