"""`flowcheck analyze` on jobs of many shapes, judged by a generator that shares nothing with it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.netib import Options, Truth, generate
from support.netib.drawn import drawn, drawn_nodes
from support.netib.shapes import CASES

from flowcheck import cli
from flowcheck.findings.catalog.collective_evidence import (
    KIND_FROM_SIZES,
    KIND_FROM_SIZES_WITH_LOSS,
    KIND_OF_LOST_SENDS,
    SCATTERED_NOT_GATHERED,
)
from flowcheck.findings.catalog.job_learning import (
    BEGINS_AMID_COLLECTIVE,
    NO_ALL_REDUCE,
    SEARCH_BROKEN_OFF,
    SEARCH_BROKEN_OFF_AFTER_LOSS,
    SENDS_UNREAD,
)

UNREAD = {
    BEGINS_AMID_COLLECTIVE.code,
    NO_ALL_REDUCE.code,
    SEARCH_BROKEN_OFF.code,
    SEARCH_BROKEN_OFF_AFTER_LOSS.code,
    SENDS_UNREAD.code,
}
"""Of notes that tell of sends which no collective was made of."""
KIND_ASSUMED = {
    KIND_FROM_SIZES.code,
    KIND_FROM_SIZES_WITH_LOSS.code,
    KIND_OF_LOST_SENDS.code,
    SCATTERED_NOT_GATHERED.code,
}
LESS = "its coverage is below 100 %, and the bytes that are missing are named"
KNOWN: dict[str, str] = {}
"""Shapes that are not decoded yet: why."""
SLOW = {
    "r2-ll128-226-three-communicators",
    "r6-ll128-226-ring-order",
    "r4-simple-230-random-qpns",
    "r4-ll-226-all-beside",
    "r2-ll-230-tensor-near-random-qpns",
    "r4-ll128-223-buffers-metric",
    "r3-ll128-230-metrics-group-2qps",
    "r4-simple-226-sharded-bf16",
    "r3-ll128-223-sharded",
    "r3-ll-223-sharded",
    "r3-ll-221-metrics-group",
    "r16-simple-230",
    "r4-ll128-230-early",
    "r6-nodes3-ll128-221-rails",
    "r2-ll-230-sharded",
    "r12-ll128-230-small-hook",
    "r2-simple-230-tensor-near-pipeline",
    "r2-ll-219-metrics-group-first",
    "r4-simple-223-tensor-near-first",
}
"""Shapes that take seconds each."""


def analyzed(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What the verb prints."""
    monkeypatch.setattr(sys, "argv", ["flowcheck", "analyze", *map(str, files), "--json"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    told = json.loads(printed.out)
    assert isinstance(told, dict)
    return told


def weights_pass(options: Options) -> bool:
    """Whether the mirror points carry the broadcast of the initial weights."""
    if options.start_step or options.start_inside or options.manners.first:
        return False
    return any(
        (rank < options.nodes - 1 and options.directions != "rx")
        or (rank > 0 and options.directions != "tx")
        for rank in options.mirrored
    )


def judge(truth: Truth, told: dict[str, Any]) -> list[str]:
    """What is wrong with the answer; nothing, if it is right."""
    options, wrong = truth.options, []
    reduces = [each for each in told["collectives"] if each["kind"] == "all_reduce"]
    whole = [each["sha256"] for each in reduces if each["coverage"] == 1.0]
    sizes = {len(each.result) for each in truth.gradients}
    known = {each.sha256 for each in truth.collectives}
    known.add(hashlib.sha256(truth.weights).hexdigest())
    for each in told["collectives"]:
        sure = each["coverage"] == 1.0 and each["sha256"] is not None and not each["assumed"]
        if sure and each["bytes"] in sizes and each["sha256"] not in known:
            wrong.append(f"collective {each['index']} ({each['kind']}): false bytes as certain")
    told_weights = told["weights"] and told["weights"]["sha256"]
    certain = told["weights"] and not told["weights"]["assumed"]
    if certain and told_weights not in (None, hashlib.sha256(truth.weights).hexdigest()):
        wrong.append("weights are false")
    wrong += mixed(truth, told)
    if options.sharded:
        return wrong + unsharded(truth, told)
    if not options.pipeline_bytes and any(c["kind"] == "send_recv" for c in told["collectives"]):
        wrong.append("storage is told as send_recv")
    # Nothing on the wire tells the order of channels whose numbers have none, but their first use.
    unordered = options.random_qpns and options.channels > 1 and not options.manners.turns
    if options.lose or unordered:
        return wrong
    if weights_pass(options) and told_weights is None:
        wrong.append("weights not found")
    expected = [each for each in truth.gradients if each.complete and each.visible == 1.0]
    at = 0
    for number, each in enumerate(expected):
        if each.sha256 in whole[at:]:
            at = whole.index(each.sha256, at) + 1
        else:
            wrong.append(f"gradient {number} of {len(expected)} (step {each.step}) not found")
    return wrong


def unsharded(truth: Truth, told: dict[str, Any]) -> list[str]:
    """Parameters that were gathered and not found whole, and sums told that no wire carried."""
    gathered = [each.sha256 for each in truth.collectives if each.kind == "all_gather"]
    whole = [each["sha256"] for each in told["collectives"] if each["kind"] == "all_gather"]
    wrong = []
    for each, found in zip(truth.collectives, told["collectives"], strict=True):
        # Of two ranks, what is gathered once looks like what is scattered once.
        doubted = any(one["code"] in KIND_ASSUMED for one in found["assumed"])
        if found["kind"] != each.kind and not doubted:
            wrong.append(f"{each.kind} is {found['kind']}")
    # Groups of LL128 do not tell where a block ends.
    if truth.options.protocol != "LL128" and not set(gathered) <= set(whole):
        wrong.append("gathered parameters")
    told_sums = [each for each in told["collectives"] if each["kind"] == "reduce_scatter"]
    wrong += [f"a sum of {each['coverage']}" for each in told_sums if each["coverage"]]
    told_so = any(note["code"] == "sharded.parameters_only" for note in told["notes"])
    return wrong if told_so else [*wrong, "no word of FSDP"]


def mixed(truth: Truth, told: dict[str, Any]) -> list[str]:
    """Communicators of the answer that hold results of several of the job's."""
    homes: dict[str, set[str]] = {}
    for each in truth.collectives:
        homes.setdefault(each.sha256, set()).add(each.communicator)
    found: dict[int, set[str]] = {}
    for each in told["collectives"]:
        if len(home := homes.get(each["sha256"], set())) == 1:
            found.setdefault(each["communicator"], set()).update(home)
    return [f"communicator {n} is {sorted(of)}" for n, of in found.items() if len(of) > 1]


def check(
    options: Options,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = generate(options, folder)
    assert not judge(made.truth, analyzed(made.files, monkeypatch, capsys)), options


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.nightly] if name in SLOW else []
    if name in KNOWN:
        marks.append(pytest.mark.xfail(strict=True, reason=KNOWN[name]))
    return marks


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks_of(name)) for name in CASES],
)
def test_shape(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(CASES[name], tmp_path, monkeypatch, capsys)


def unfinished(options: Options) -> bool:
    """A random job need not be decoded yet: it is joined midstream, or its sizes leave open
    where a tensor ends, by groups of LL128 or in the last line of weights with buffers."""
    protocols = (options.protocol, *(protocol for _, protocol in options.mix))
    amid = bool(options.start_step or options.start_inside)
    return amid or "LL128" in protocols or bool(options.buffers)


def told_instead(told: dict[str, Any], lacking: int) -> str:
    """The sentence that a reader gets in place of as many sums; empty: of some nothing is said."""
    for note in told["notes"]:
        if note["code"] in UNREAD:
            return str(note["sentence"])
    sums = [each for each in told["collectives"] if each["kind"] == "all_reduce"]
    open_ones = [each for each in sums if each["sha256"] is None]
    if len(open_ones) < lacking or not all(c["assumed"] or c["missing"] for c in open_ones):
        return ""
    said = Counter(one["sentence"] for each in open_ones for one in each["assumed"])
    return said.most_common(1)[0][0] if said else LESS


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(300))
def test_random_shape(
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not decoded yet may be missing, where a sentence says so; false it must never be."""
    options = drawn(seed)
    made = generate(options, tmp_path)
    told = analyzed(made.files, monkeypatch, capsys)
    wrong = judge(made.truth, told)
    assert all(one.endswith("not found") for one in wrong), (wrong, options)
    if not wrong:
        return
    assert unfinished(options), (wrong, options)
    lacking = [one for one in wrong if one.startswith("gradient")]
    said = told_instead(told, len(lacking)) if lacking else str(next(iter(told["notes"]), ""))
    assert said, (wrong, options)
    pytest.xfail(said)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100))
def test_of_nodes_of_several_gpus_nothing_false_is_told(
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where chunks are alike, or weights end within a line, less is told."""
    made = generate(drawn_nodes(seed), tmp_path)
    wrong = judge(made.truth, analyzed(made.files, monkeypatch, capsys))
    assert not [sentence for sentence in wrong if "not found" not in sentence], made.truth.options
