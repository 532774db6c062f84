"""The registry of NCCL's algorithms: what a row decides, and that nobody else decides it."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.netib import Options, generate
from support.port_layouts import choose, layout, words
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, LearnError
from flowcheck.findings.catalog.plan_figures import NO_ALL_REDUCE
from flowcheck.findings.catalog.refused_files import ALGORITHM_NOT_FOLLOWED, NOT_A_LEARNED_JOB
from flowcheck.findings.catalog.refused_layouts import ONE_OF
from flowcheck.ops.analysis.analyze_command import as_dict
from flowcheck.ops.analysis.communicator_text import communicator_lines
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.watch.state.diagram_data import diagrams
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import (
    ALGORITHMS,
    connection_sends,
    followed_algorithms,
    spec_of,
)
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import decode_job, encode_job

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
EARLIER = Path(__file__).resolve().parents[1] / "data" / "earlier" / "job-rings-and-trees.json"
TREE_BELOW = 90_000
"""All-reduces of fewer bytes went by trees in that job (tests/data/README.md)."""
MIXED = Options(
    shapes=((300, 128), (300,), (64, 300), (64,)),
    ranks=4,
    channels=2,
    version=(2, 23),
    tree_below=TREE_BELOW,
    caps_bytes=(40000, 90000),
    mirrored=(2,),
)


def changed(text: bytes, **keys: Any) -> bytes:
    """A job file whose collectives have these keys."""
    raw = json.loads(text)
    for op in (*raw["first"], *raw["each"]):
        op.update(keys)
    return json.dumps(raw).encode()


def test_every_name_has_a_row_that_is_followed_or_says_why_not() -> None:
    assert set(ALGORITHMS) == set(Algorithm)
    for name, spec in ALGORITHMS.items():
        assert spec.name is name
        assert spec.followed == bool(spec.sends) == bool(spec.unplanned) == bool(spec.kinds)
    assert [spec.name for spec in followed_algorithms()] == [
        Algorithm.RING,
        Algorithm.TREE,
        Algorithm.NVLS_TREE,
    ]


def test_what_is_not_followed_is_refused_by_name(tmp_path: Path) -> None:
    for name in (Algorithm.NVLS, Algorithm.COLLNET, Algorithm.PAT):
        with refused_as(spec_of(name).refused_because, kind=ConfigError):
            choose(tmp_path, layout(algorithm=str(name)))
        with refused_as(ALGORITHM_NOT_FOLLOWED, kind=LearnError, algorithm=spec_of(name).plural):
            decode_job(changed(EARLIER.read_bytes(), algorithm=str(name)))
        with pytest.raises(ValueError, match=re_of(str(spec_of(name).refused_because))):
            connection_sends(
                CollectiveKind.ALL_REDUCE,
                4096,
                sender=0,
                algorithm=name,
                ranks=4,
                channels=1,
                protocol=Protocol.LL,
                era=NcclEra.V2_23,
            )
    choices = ("ring", "tree", "nvlstree", "both", "nvls", "collnet", "pat")
    with refused_as(ONE_OF, kind=ConfigError, choices=choices):
        choose(tmp_path, layout(algorithm="star"))


def re_of(text: str) -> str:
    return text.replace("(", r"\(").replace(")", r"\)")


def test_a_job_of_before_algorithms_had_names_is_read() -> None:
    text = EARLIER.read_bytes()
    job = decode_job(text)
    found = {(op.kind, op.work_bytes < TREE_BELOW): op.algorithm for op in (*job.first, *job.each)}
    assert found[CollectiveKind.ALL_REDUCE, True] is Algorithm.TREE
    assert found[CollectiveKind.ALL_REDUCE, False] is Algorithm.RING
    assert found[CollectiveKind.BROADCAST, True] is Algorithm.RING
    again = encode_job(job)
    assert {op["algorithm"] for op in json.loads(again)["each"]} == {"ring", "tree"}
    assert not any("tree" in op for op in json.loads(again)["each"])
    assert decode_job(again) == job


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "star"},
        {"algorithm": "tree", "kind": "broadcast"},
        {"tree": 1},
        {"tree": None},
    ],
)
def test_a_job_of_collectives_that_cannot_be_is_refused(keys: dict[str, Any]) -> None:
    for text in (EARLIER.read_bytes(), encode_job(decode_job(EARLIER.read_bytes()))):
        with pytest.raises(LearnError):
            decode_job(changed(text, **keys))


@pytest.mark.parametrize(
    "text",
    [
        b'["tree"]',
        b'{"tree": true}',
        b'{"first": {"tree": true}, "each": 1}',
        b'{"first": [[{"tree": true}], "tree"], "each": [{"tree": true}]}',
        b'{"first": "tree"',
    ],
)
def test_what_is_no_job_is_refused_in_words(text: bytes) -> None:
    with refused_as(NOT_A_LEARNED_JOB, kind=LearnError):
        decode_job(text)


def test_json_keeps_the_keys_of_before_and_has_the_name_beside(tmp_path: Path) -> None:
    made = generate(MIXED, tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    told = json.loads(msgspec.json.encode(as_dict(tape.frames, reading)))

    reduced = [one for one in told["collectives"] if one["kind"] == "all_reduce" and one["bytes"]]
    assert {one["tree"] for one in reduced} == {True, False}
    for one in told["collectives"]:
        small = one["kind"] == "all_reduce" and one["bytes"] < TREE_BELOW
        assert one["tree"] == small == (one["algorithm"] == "tree")
    (own,) = told["communicators"]
    by_trees = sum(one["tree"] for one in told["collectives"])
    assert own["trees"] == by_trees == own["algorithms"]["tree"]
    assert own["algorithms"]["ring"] == len(told["collectives"]) - by_trees
    assert reading.job is not None
    (drawn,) = json.loads(msgspec.json.encode(diagrams(reading.job)))
    for link in (*own["links"], *drawn["links"]):
        assert link["tree"] == (link["algorithm"] == "tree")
        if link["receiver"] != (link["sender"] + 1) % MIXED.ranks:
            assert link["tree"]
    assert {link["tree"] for link in drawn["links"]} == {True, False}


def test_a_row_is_all_that_makes_an_algorithm_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A made-up one under the name of one that is refused: it goes by trees, of two ranks too."""
    made_up = replace(
        spec_of(Algorithm.TREE),
        name=Algorithm.PAT,
        plural="made-up ones",
        least_ranks=2,
        least_nodes=2,
        mirror_note=NO_ALL_REDUCE(),
    )
    by_trees = decode_job(EARLIER.read_bytes())
    text = encode_job(by_trees).replace(b'"tree"', b'"pat"')
    with pytest.raises(LearnError):
        decode_job(text)
    with pytest.raises(ConfigError):
        choose(tmp_path, layout(nodes=2, algorithm="pat"))
    monkeypatch.setitem(ALGORITHMS, Algorithm.PAT, made_up)

    job = decode_job(text)
    for mine, theirs in zip(compile_flow_plans(job), compile_flow_plans(by_trees), strict=True):
        assert mine.each.sends.tobytes() == theirs.each.sends.tobytes()
        assert mine.each.segments.tobytes() == theirs.each.segments.tobytes()
    told = "\n".join(communicator_lines(summarize_learned_job(job)))
    assert "made-up ones" in told and "trees" not in told
    drawn = [link for one in diagrams(job) for link in one.links]
    found = {(link.algorithm, link.of_trees) for link in drawn}
    assert found == {(Algorithm.RING, False), (Algorithm.PAT, False)}
    drawn = [link for one in diagrams(by_trees) for link in one.links]
    found = {(link.algorithm, link.of_trees) for link in drawn}
    assert found == {(Algorithm.RING, False), (Algorithm.TREE, True)}
    plan = choose(tmp_path, layout(nodes=2, algorithm="pat"))
    assert words(plan) == ["Ethernet1:rx", "Ethernet1:tx"]
    assert plan.notes[0] == NO_ALL_REDUCE()


MAY_NAME = {
    "ops/analysis/analyze_command.py": "the key `tree` of --json, from before there were names",
    "ops/analysis/communicator_summary.py": "the keys `trees` and `tree` of --json",
    "ops/watch/state/diagram_data.py": "the key `tree` of a link in /state.json",
    "wire/training_job/learned_job.py": "the key `tree` of job files of before",
}
OWN = ("wire/algorithms/", "wire/learn/", "lab/")
"""The room itself; the learner, which has flags of its own; the lab, which is independent."""


def test_nobody_else_tells_algorithms_apart_by_name() -> None:
    """But for the ring, whose links are drawn and counted as such."""
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name.startswith(OWN):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if named and node.value.id == "Algorithm" and node.attr in Algorithm.__members__:  # type: ignore[attr-defined]
                found.setdefault(name, []).append(node.attr)  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and ast.unparse(node) in (
                "tree: bool",
                "tree: bool = False",
            ):
                found.setdefault(name, []).append("tree: bool")
    others = {name for name, names in found.items() if set(names) != {"RING"}}
    assert others == set(MAY_NAME)
