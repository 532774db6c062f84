"""The taint of a model whose parts are two rings of one training job is told as one. The judge is
torch: what of the replicas differs from a training that lost nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.two_rings import SHAPES, TwoRings
from test_page_text import NODE, drawn

from flowcheck.findings.catalog.restored_state import (
    EXACT_IN_ALL,
    MODEL_TAINTED,
    NOT_EXACT_IN_ALL,
)
from flowcheck.ops.lifecycle.common_step_of_jobs import write_index
from flowcheck.ops.lifecycle.status_command import print_state
from flowcheck.ops.restore import restore_command, step_lookup, verify_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import look_at
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import audit_file
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import FileHeal
from flowcheck.ops.watch.prometheus_metrics import samples
from flowcheck.ops.watch.state.chain_state import ChainState, HealthWord, decode_state, encode_state
from flowcheck.ops.watch.state.health_rules import job_health, worst_health
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.top_command import frame_as_text
from flowcheck.replica.model_taint import ModelTaint

STEPS = 5
LOST = {
    "one": {2: {3: [(401, 430), (1700, 1710)]}},
    "both": {1: {2: [(8, 40)], 4: [(16, 20), (700, 801)]}, 2: {4: [(401, 430)]}},
}
"""{case: {ring: {step: byte ranges of its gradient that did not come}}}"""
WHOLE = sum(torch.Size(shape).numel() for shapes in SHAPES.values() for shape in shapes)


def lossy(folder: Path, case: str, **options: Any) -> TwoRings:
    made = TwoRings(folder, **options)
    for step in range(1, STEPS + 1):
        for ring in SHAPES:
            made.take(ring, LOST[case].get(ring, {}).get(step, ()))
    return made


@pytest.fixture(scope="module", params=LOST)
def rings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoRings]:
    """Its tests change nothing of it."""
    made = lossy(tmp_path_factory.mktemp(request.param), request.param)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_lookup, "settle_chain", lambda run, config: None)


def first_losses(case: dict[int, dict[int, Any]]) -> dict[str, int]:
    return {f"job-{ring}": min(steps) for ring, steps in case.items()}


def state_of(rings: TwoRings) -> ChainState:
    """As programs read it."""
    return decode_state(encode_state(StateReader(rings.run.root, cached_s=0).state()))


def judged(model: ModelTaint, rings: TwoRings, *, by_range: bool = True) -> None:
    """The union is what torch says, element by element, or where no range is known by count."""
    wrong = rings.wrong()
    counts = {job: {n: len(at) for n, at in own.items()} for job, own in wrong.items()}
    told: dict[str, dict[str, set[int]]] = {}
    told_counts: dict[str, dict[str, int]] = {}
    for one in model.tensors:
        told_counts.setdefault(one.job, {})[one.parameter] = one.tainted_elements
        at = {n for of in one.ranges for n in range(of.start, of.stop)}
        told.setdefault(one.job, {})[one.parameter] = at
    assert told_counts == counts
    assert told == wrong or not by_range
    total = sum(n for own in counts.values() for n in own.values())
    assert (model.tainted_elements, model.all_elements) == (total, WHOLE)
    assert model.percent == pytest.approx(100 * total / WHOLE, rel=0.05)
    assert model.jobs == ("job-1", "job-2")


def as_model(told: Any) -> ModelTaint:
    return msgspec.convert(told, ModelTaint)


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_status_page_and_metrics_tell_the_union(rings: TwoRings) -> None:
    state = state_of(rings)
    [model] = state.models
    judged(model, rings)
    assert (model.step, model.exact_step) == (STEPS, rings.newest_exact)
    case = next(own for own in LOST.values() if set(own) == {int(j[-1]) for j in rings.wrong()})
    assert model.since == min(first_losses(case).values())
    assert model.told is not None and model.told.is_any_of(MODEL_TAINTED)
    exact = model.told.arguments["exact"]
    assert exact == EXACT_IN_ALL(rings.newest_exact)
    told = {name: value for name, labels, value in samples(state) if labels == ("job-1+job-2",)}
    assert told == {
        "flowcheck_model_elements": WHOLE,
        "flowcheck_model_tainted_elements": model.tainted_elements,
        "flowcheck_model_tainted_since_step": model.since,
        "flowcheck_model_exact_step": rings.newest_exact,
    }


def test_tables_have_a_row_for_each_tensor_and_the_sums(
    rings: TwoRings, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(rings)
    print_state(state, ())
    for text in (capsys.readouterr().out, frame_as_text(state)):
        rows = [line.split() for line in text.splitlines()]
        wrong = rings.wrong()
        for job, own in wrong.items():
            for name, at in own.items():
                assert any(row[:3] == [job, name, str(len(at))] for row in rows)
        total = sum(len(at) for own in wrong.values() for at in own.values())
        assert any(row[:3] == ["all", str(total), str(WHOLE)] for row in rows)
        assert sum(str(state.models[0].told) in line for line in text.splitlines()) == 1


@pytest.mark.skipif(NODE is None, reason="no node: apt-get install nodejs")
def test_the_page_shows_the_table_above_the_jobs(rings: TwoRings) -> None:
    state = state_of(rings)
    said = drawn(json.loads(encode_state(state)))["said"]
    assert str(state.models[0].told) in said
    table = said[said.index("Elements") + 1 : said.index("All") + 4]
    wrong = rings.wrong()
    rows = [(job, name, len(at)) for job, own in wrong.items() for name, at in own.items()]
    cells = [tuple(table[at : at + 3]) for at in range(len(table))]
    assert all((job, name, str(count)) in cells for job, name, count in rows)
    total = str(sum(count for _, _, count in rows))
    assert total in table[-3:], "the sums come last"


def test_health_tells_all_rings_where_one_of_them_is_tainted(rings: TwoRings) -> None:
    state = state_of(rings)
    jobs = [
        msgspec.structs.replace(one, health=job_health(one, (), sources_ended=False))
        for one in state.jobs
    ]
    told = worst_health(jobs, state.models)
    assert (told.word, told.reason) == (HealthWord.TAINTED, state.models[0].told)


@pytest.mark.parametrize("recorded", ["in its end", "damaged"])
def test_after_the_end_ranges_and_the_kept_exact_step_are_told(
    tmp_path: Path, recorded: str
) -> None:
    rings = lossy(tmp_path, "both")
    exact, before = rings.newest_exact, rings.wrong()
    rings.end()
    if recorded != "in its end":
        for ring in SHAPES:
            rings.own(ring).tainted_at_end.write_text("{")
    [model] = state_of(rings).models
    counts = {(one.job, one.parameter): one.tainted_elements for one in model.tensors}
    assert counts == {(job, n): len(at) for job, own in before.items() for n, at in own.items()}
    assert (model.all_elements, model.exact_step) == (WHOLE, exact)
    told: dict[str, dict[str, set[int]]] = {}
    for one in model.tensors:
        at = {n for of in one.ranges for n in range(of.start, of.stop)}
        told.setdefault(one.job, {})[one.parameter] = at
    assert (told == before) == (recorded == "in its end")
    assert any(one.ranges for one in model.tensors) == (recorded == "in its end")
    rings.close()


def restored(rings: TwoRings, out: Path, *, allow_tainted: bool) -> RestoreRequest:
    files = [rings.save(ring, out.parent / f"files/{ring}.pt", 1) for ring in (2, 1)]
    source = StepSource(run=rings.run.root, allow_tainted=allow_tainted)
    return RestoreRequest(source=source, templates=tuple(files), output=out)


def test_a_restore_of_tainted_rings_names_the_elements_of_all(
    rings: TwoRings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    restore_command.run(restored(rings, out, allow_tainted=True), as_json=True)
    told = said(capsys)
    [model] = map(as_model, told["tainted_models"])
    judged(model, rings)
    differ = 0
    for ring in SHAPES:
        tree = torch.load(out / f"job-{ring}-{ring}.pt", weights_only=True)
        right = rings.truth[ring][-1].tree()["model"]
        differ += sum(int((right[n] != own).sum()) for n, own in tree["model"].items())
    assert model.tainted_elements == differ > 0
    restore_command.run(restored(rings, tmp_path / "text", allow_tainted=True), as_json=False)
    assert str(model.told).split(" rest ")[0] in capsys.readouterr().out


def test_without_leave_the_newest_step_exact_in_all_rings_is_given(
    rings: TwoRings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    restore_command.run(restored(rings, out, allow_tainted=False), as_json=True)
    told = said(capsys)
    newer = list(range(rings.newest_exact + 1, STEPS + 1))
    assert [(one["step"], one["newer_tainted"]) for one in told["jobs"]] == [
        (rings.newest_exact, newer)
    ] * 2
    assert told["tainted_models"] == []
    are_torchs(rings, out, rings.newest_exact)


def are_torchs(rings: TwoRings, out: Path, step: int) -> None:
    for ring in SHAPES:
        tree = torch.load(out / f"job-{ring}-{ring}.pt", weights_only=True)
        right = rings.truth[ring][step].tree()
        assert all(torch.equal(right["model"][n], own) for n, own in tree["model"].items())


def test_an_exact_step_that_only_files_have_is_told_and_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ring has a newer exact file of its own; only an older step is exact in both."""
    rings = TwoRings(tmp_path, keep_bytes=0)
    try:
        for step in range(1, STEPS + 1):
            rings.take(1, [(8, 40)] if step == 3 else ())
            rings.take(2, [(0, 4)] if step == 4 else ())
            for ring in SHAPES:
                if step == 2 or (ring, step) == (2, 3):
                    rings.keep(ring, tmp_path / f"kept/job-{ring}")
        [model] = state_of(rings).models
        assert model.exact_step == rings.newest_exact == 2
        out = tmp_path / "out"
        restore_command.run(restored(rings, out, allow_tainted=False), as_json=True)
        assert [one["step"] for one in said(capsys)["jobs"]] == [2, 2]
        are_torchs(rings, out, 2)
        for ring in SHAPES:  # a manifest that cannot be read makes no step exact
            (tmp_path / f"kept/job-{ring}/step-2/manifest.json").write_text("{")
        [model] = state_of(rings).models
        assert model.exact_step is None
        assert model.told is not None and model.told.arguments["exact"] == NOT_EXACT_IN_ALL()
    finally:
        rings.close()


def test_a_file_that_was_saved_before_copies_differed_is_exact_in_no_ring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rings, lost = TwoRings(tmp_path, keep_bytes=0), [(8, 40)]
    try:
        for step in range(1, STEPS + 1):
            rings.take(1, lost if step == 3 else (), known=False)
            rings.take(2)
            for ring in SHAPES:
                if step in (2, 3):
                    rings.keep(ring, tmp_path / f"kept/job-{ring}")
            if step == 3:
                rings.differs_late(1, 3, lost)
        [model] = state_of(rings).models
        assert model.exact_step == rings.newest_exact == 2
        out = tmp_path / "out"
        restore_command.run(restored(rings, out, allow_tainted=False), as_json=True)
        assert [one["step"] for one in said(capsys)["jobs"]] == [2, 2]
        are_torchs(rings, out, 2)
    finally:
        rings.close()


def test_checkpoints_of_all_rings_are_verified_as_one(
    rings: TwoRings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    kept = [rings.keep(ring, folder / f"job-{ring}") for ring in SHAPES]
    write_index(folder, rings.run, kept, STEPS)
    assert verify_command.run(folder, as_json=True) == 0
    told = said(capsys)
    assert [(one["step"], one["whole"]) for one in told["jobs"]] == [(STEPS, True)] * 2
    [model] = map(as_model, told["tainted_models"])
    judged(model, rings)
    file = next((folder / "job-2").glob("step-*/model.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert verify_command.run(folder, as_json=True) == verify_command.DAMAGED
    assert [one["whole"] for one in said(capsys)["jobs"]] == [True, False]


def test_files_heal_ring_after_ring_until_nothing_is_tainted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rings = lossy(tmp_path, "both")
    try:
        for ring in SHAPES:
            file = rings.save(ring, tmp_path / f"files/job-{ring}/step-{STEPS}.pt")
            audit_command.run(rings.run.root, file, as_json=True)
            [model] = map(as_model, said(capsys)["tainted_models"])
            judged(model, rings)
            [one] = [c for c in look_at(tmp_path / "files").candidates if c.path == file]
            heal = audit_file(rings.run, tmp_path / "files", one, [])
            assert isinstance(heal, FileHeal) and heal.line.job == ring
            rings.heal(ring, heal)
            left = {f"job-{number}" for number in SHAPES if number > ring}
            assert set(rings.wrong()) == left
            [model] = state_of(rings).models
            judged(model, rings)
        assert (model.exact_step, model.since, model.told) == (STEPS, None, None)
        audit_command.run(rings.run.root, file, as_json=True)
        assert said(capsys)["tainted_models"] == []
    finally:
        rings.close()


def test_independent_jobs_are_models_of_their_own(tmp_path: Path) -> None:
    rings = lossy(tmp_path, "both", together=False)
    try:
        models = state_of(rings).models
        assert [one.jobs for one in models] == [("job-1",), ("job-2",)]
        for ring, model in zip(SHAPES, models, strict=True):
            count = sum(map(len, rings.wrong()[f"job-{ring}"].values()))
            whole = sum(torch.Size(shape).numel() for shape in SHAPES[ring])
            assert (model.tainted_elements, model.all_elements) == (count, whole)
            assert model.exact_step == max(rings.exact[ring])
        [alone] = StateReader(rings.own(2).root).state().models
        assert alone == models[1]
    finally:
        rings.close()
