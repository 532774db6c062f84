"""A replica that is stepped from recorded gradients, in a run without a shard and connections.

Judged by torch's own optimizer, which takes the gradients of the made-up job as they were.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.chain import Command, wait_until
from support.chain import flowcheck as command
from support.incarnations import JOB, Life, floats
from support.lives import Both, Killed
from support.refused_as import refused_as
from support.staged import Chain, Heard
from test_base_command import Trainer

import flowcheck
from flowcheck.config import encode_config, job_from
from flowcheck.errors import ConfigError, LearnError, StateError
from flowcheck.findings.catalog.gradient_sources import (
    LOG_CHANGED,
    LOG_CLOSED,
    LOG_GAP,
    NOT_A_SOURCE_RECORD,
    OTHER_GRADIENTS,
)
from flowcheck.findings.catalog.refused_settings import (
    LEARNED_FOR_LOGS,
    LOGS_BESIDE_SOURCES,
    LOGS_OF_ONE_JOB,
    NO_LOGS,
)
from flowcheck.findings.catalog.replica_update_notes import EMPTY_STATE
from flowcheck.findings.finding import Entry
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Note
from flowcheck.ops.lifecycle.shutdown_checkpoint import save_checkpoint
from flowcheck.ops.trainer_checkpoint.audit_command import read_checkpoint_template
from flowcheck.ops.trainer_checkpoint.replica_reset import submit_checkpoint
from flowcheck.ops.watch.state.job_reader import JobReader
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.pending_step import PendingStep
from flowcheck.replica.state_file.gradient_log import GradientLog, log_file_space
from flowcheck.stages.checkpointing.pinned_steps import ReplicaSteps
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.lifecycle_record_reader import read_record
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.replica_update.gradient_sources import source_registry
from flowcheck.stages.replica_update.gradient_sources.log_file_source import (
    LogFileSource,
    write_log_record,
)
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.replica_update.update_stage import UpdateService
from flowcheck.stages.run_directory.bounded_log_files import complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.learned_job import decode_job
from flowcheck.wire.training_job.training_spec import decode_spec, encode_spec, without_connections

SETTINGS = {
    "source": [{"file": "0"}],
    "optimizer": {"name": "adamw", "learning_rate": 1e-3},
    "replica": {"keep_bytes": 1 << 22},
    "digests": True,
}


@dataclass
class Recorded:
    """What a chain left that followed the job, and waited for a base until its end."""

    folder: Path
    logs: list[Path]
    spec: Path
    weights: Path
    gradients: list[np.ndarray]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    life = Life(JOB, Trainer().flat())
    gradients = [floats(raw).copy() for raw in life.generate().gradients]
    write_pcap(folder / "life.pcap", life.frames_of())
    log = {"memory_bytes": log_file_space(Path(), 3, gradients[0].nbytes).size_bytes}
    log |= {"file": str(folder / "log-1"), "file_bytes": 1 << 20}
    replica = {"keep_bytes": 1 << 22, "awaits_base": True}
    chain = Chain(folder, folder / "memory", [folder / "life.pcap"], 256)
    both = Both(chain, replica=replica, gradient_log=log)
    both.drive()
    shutil.copy(chain.run.gradients, folder / "log-0")
    shutil.copy(chain.run.weights, folder / "weights.bin")
    job = decode_job(chain.run.learned_job.read_bytes())
    shutil.copy(chain.run.learned_job, folder / "job.json")
    (folder / "spec.json").write_bytes(encode_spec(without_connections(job)))
    both.close()
    logs = [folder / "log-1", folder / "log-0"]  # whatever their order
    return Recorded(folder, logs, folder / "spec.json", folder / "weights.bin", gradients)


@dataclass
class Stepped:
    """A run directory with what was recorded, and its updater."""

    run: RunDir
    heard: Heard

    def service(self, settings: dict[str, Any] = SETTINGS) -> UpdateService:
        service = UpdateService(self.run, job_from(settings))
        try:
            service.start(self.heard)  # type: ignore[arg-type]
        except Killed:
            service.stop()
            raise
        return service

    def drive(self) -> None:
        """To the end of what is logged, by updaters that may be killed."""
        service: UpdateService | None = None
        for _ in range(1000):
            try:
                service = service or self.service()
                if not service.work() and service.drained():
                    service.stop()
                    return
            except Killed:
                if service is not None:
                    service.stop()  # what the kernel does for a process that is gone
                service = None
        raise AssertionError("the updater never came to an end")

    def lines(self) -> list[dict[str, Any]]:
        text = self.run.steps.read_text() if self.run.steps.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def told(self) -> list[Any]:
        return [note.finding for note in self.heard.of(Note)]  # type: ignore[attr-defined]


@pytest.fixture
def stepped(recorded: Recorded, shm: Path, tmp_path: Path) -> Callable[[list[Path]], Stepped]:
    def make(logs: list[Path]) -> Stepped:
        run = RunDir.create(tmp_path / "stepped", shm)
        shutil.copy(recorded.weights, run.weights)
        shutil.copy(recorded.spec, run.training_spec)
        write_log_record(run, logs)
        return Stepped(run, Heard())

    return make


def assert_as_torch(stepped: Stepped, gradients: list[np.ndarray]) -> None:
    """Every step once, in order, and all of the state of the last one."""
    trainer = Trainer()
    wanted = [trainer.step(gradient) for gradient in gradients]
    lines = stepped.lines()
    assert [line["step"] for line in lines] == list(range(1, len(gradients) + 1))
    assert [line["parameters_sha256"] for line in lines] == wanted
    optimizer = job_from(SETTINGS).optimizer
    assert optimizer is not None
    replica = Replica.open(stepped.run.replica, optimizer)
    try:
        for own, states in zip(trainer.parameters, replica.states(), strict=True):
            theirs = trainer.optimizer.state[own]
            assert states.keys() >= {"exp_avg", "exp_avg_sq"}
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(states[name].tensor.reshape(-1), theirs[name].reshape(-1))
    finally:
        replica.close()


def test_a_replica_is_stepped_from_recorded_gradients_alone(
    recorded: Recorded, stepped: Callable[..., Stepped]
) -> None:
    made = stepped(recorded.logs)
    made.drive()
    assert not made.run.learned_job.exists() and not made.run.shard.exists()
    assert_as_torch(made, recorded.gradients)
    assert read_record(made.run).update.state is ReplicaState.APPLYING
    assert EMPTY_STATE() in assumptions_of(made.run)
    before = [log.read_bytes() for log in recorded.logs]
    made.drive()  # once more, by an updater that finds all of it taken
    assert len(made.lines()) == JOB.steps
    assert [log.read_bytes() for log in recorded.logs] == before


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(PendingStep, "commit"), (StepLog, "write"), (LogFileSource, "release")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_an_updater_killed_at_any_store_takes_every_step_once(
    owner: Any,
    name: str,
    behind: bool,
    recorded: Recorded,
    stepped: Callable[..., Stepped],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = getattr(owner, name), [0]

    def changed(*words: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2 and not behind:
            raise Killed
        done = real(*words, **named)
        if calls[0] % 2 and behind:
            raise Killed
        return done

    monkeypatch.setattr(owner, name, changed)
    made = stepped(recorded.logs)
    made.drive()
    assert calls[0] >= JOB.steps
    assert_as_torch(made, recorded.gradients)


def log_of(path: Path, gradients: dict[int, np.ndarray], steps: int = JOB.steps) -> GradientLog:
    """A log of a peer's that has room for so many steps."""
    size = next(iter(gradients.values())).nbytes
    log = GradientLog([log_file_space(path, steps, size)], size)
    for iteration, gradient in gradients.items():
        log.append(iteration, gradient)  # type: ignore[arg-type]
    return log


def test_a_log_that_its_writer_goes_on_with_is_followed(
    recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    path = tmp_path / "peer"
    made = stepped([path])
    service = made.service()
    assert service.work() == 0 and service.drained()
    log = log_of(path, {1: recorded.gradients[0]})
    for number, gradient in enumerate(recorded.gradients, 1):
        if number > 1:
            assert log.append(number, gradient)  # type: ignore[arg-type]
        assert not service.drained()
        assert service.work() == 1
        assert service.work() == 0 and service.drained()
        assert made.lines()[-1]["step"] == number
    service.stop()
    log.close()
    assert_as_torch(made, recorded.gradients)
    assert made.told() == []


@pytest.mark.parametrize("other", [False, True])
def test_what_a_logged_gradient_lacks_is_tainted(
    other: bool, recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    """The first 16 elements of step 3, of floats; everything else is torch's. other: another log
    has all of that step."""
    gradients = [raw.copy() for raw in recorded.gradients]
    gradients[2].view(np.uint8)[:64] = 0
    log = log_of(tmp_path / "peer", {1: gradients[0], 2: gradients[1]})
    log.append(3, gradients[2], ((0, 64),))  # type: ignore[arg-type]
    log.append(4, gradients[3])  # type: ignore[arg-type]
    log.close()
    logs = [tmp_path / "peer"]
    if other:
        log_of(tmp_path / "whole", {3: recorded.gradients[2]}).close()
        logs.append(tmp_path / "whole")
    made = stepped(logs)
    made.drive()
    assert_as_torch(made, recorded.gradients[:4] if other else gradients[:4])
    lacked = [line.get("missing_elements", 0) for line in made.lines()]
    assert lacked == [0, 0, 0 if other else 16, 0]


def spoilt(kind: str, path: Path, gradients: list[np.ndarray]) -> Any:
    """A log of two steps that may be taken, and what is told of it."""
    first = {1: gradients[0], 2: gradients[1]}
    if kind == "gap":
        log_of(path, first | {4: gradients[3]}).close()
        return LOG_GAP(iteration=4, last=2)
    if kind == "closed":
        log_of(path, first | {3: gradients[2]}, steps=2).close()
        return LOG_CLOSED(last=2)
    log_of(path, first | {3: gradients[2]}).close()
    raw = bytearray(path.read_bytes())
    at = raw.find(gradients[2].tobytes())
    assert at > 0
    raw[at] ^= 1
    path.write_bytes(raw)
    return LOG_CHANGED(iteration=3, file=path)


@pytest.mark.parametrize("kind", ["gap", "closed", "changed"])
def test_where_a_log_ends_the_replica_stops_and_says_why_once(
    kind: str, recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    wanted = spoilt(kind, tmp_path / "peer", recorded.gradients)
    made = stepped([tmp_path / "peer"])
    service = made.service()
    for _ in range(6):
        service.work()
    assert service.drained()
    service.stop()
    assert_as_torch(made, recorded.gradients[:2])
    assert made.told() == [wanted]
    assert read_record(made.run).update.state is ReplicaState.STOPPED


def test_a_changed_copy_is_no_loss_where_another_log_has_the_iteration(
    recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    spoilt("changed", tmp_path / "peer", recorded.gradients)
    made = stepped([tmp_path / "peer", *recorded.logs])
    made.drive()
    assert_as_torch(made, recorded.gradients)


def test_files_of_something_else_are_refused(
    recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    log_of(tmp_path / "other", {1: recorded.gradients[0][:-1]}).close()
    made = stepped([tmp_path / "other"])
    with pytest.raises(StateError) as refused:
        made.service()
    assert refused.value.finding.is_any_of(OTHER_GRADIENTS)
    (made.run.learned_folder / "gradient_logs.json").write_bytes(b'{"files": [], "format": 9}')
    with pytest.raises(StateError) as refused:
        made.service()
    assert refused.value.finding.is_any_of(NOT_A_SOURCE_RECORD)


def test_what_a_spec_tells_is_what_the_job_tells(recorded: Recorded) -> None:
    spec = decode_spec(recorded.spec.read_bytes())
    assert spec.gradient_bytes == spec.state_bytes == recorded.gradients[0].nbytes
    assert [parameter.sizes for parameter in spec.parameters] == list(JOB.shapes)
    assert spec.communicator_ranks == (JOB.ranks,)
    mapped = msgspec.structs.replace(spec, has_usage_map=True)
    assert mapped.gradient_bytes == spec.gradient_bytes + 4 * len(JOB.shapes)
    assert {"edges", "communicators", "each"}.isdisjoint(json.loads(recorded.spec.read_bytes()))
    for wrong in (b"{", b"{}", encode_spec(msgspec.structs.replace(spec, format=9))):
        with pytest.raises(LearnError):
            decode_spec(wrong)


def test_up_steps_a_replica_from_the_logs_that_a_job_file_names(
    recorded: Recorded, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'run = "{tmp_path}/run"\ncheckpoint = "{tmp_path}/out"\n'
        f'learned = "{recorded.folder}/job.json"\n'
        f"[gradients]\nlogs = {json.dumps([str(log) for log in recorded.logs])}\n"
        '[optimizer]\nname = "adamw"\nlearning_rate = 1e-3\n'
    )
    run = RunDir(tmp_path / "run")
    with Command("up", job, "--json") as up:
        wait_until(lambda: complete_lines(run.steps)[JOB.steps - 1 :] != [], 90, "all steps")
        code, out, err = command("status", "--run", run.root, "--json")
        assert code == 0, out + err
        seen = json.loads(out)
        up.process.send_signal(signal.SIGTERM)
        result = up.json(60)
    assert {stage["name"] for stage in seen["stages"]} == {"supervisor", "update"}
    assert (seen["jobs"][0]["learned"], seen["jobs"][0]["step"]) == (True, JOB.steps)
    assert result["steps"] == JOB.steps
    found = flowcheck.load(result["checkpoint"])
    wanted = trained(JOB.steps, recorded.gradients)
    for theirs, ours in zip(wanted.parameters, found["model"].values(), strict=True):
        assert torch.equal(theirs.detach(), ours.reshape(theirs.shape))


@pytest.mark.parametrize(
    ("stated", "key", "right"),
    [
        ({"gradients": {"logs": ["a"]}, "learned": "j"}, "gradients", LOGS_BESIDE_SOURCES),
        ({"source": [], "gradients": {"logs": []}, "learned": "j"}, "gradients.logs", NO_LOGS),
        ({"source": [], "gradients": {"logs": ["a"]}}, "learned", LEARNED_FOR_LOGS),
        (
            {"source": [], "gradients": {"logs": ["a"]}, "learned": "j", "jobs": 2},
            "gradients",
            LOGS_OF_ONE_JOB,
        ),
    ],
)
def test_gradient_logs_stand_alone_in_a_job_file(
    stated: dict[str, Any], key: str, right: Entry
) -> None:
    with refused_as(right, kind=ConfigError) as refused:
        job_from(SETTINGS | stated)
    assert isinstance(refused.value, ConfigError) and refused.value.key == key


def test_only_the_extractor_and_the_sources_know_how_gradients_arrive() -> None:
    """And the estimate of memory, which counts the shard's generations."""
    package = Path(flowcheck.__file__).parent
    know = {
        str(path.relative_to(package).parent)
        for path in package.rglob("*.py")
        if "gradient_double_buffer" in path.read_text()
    }
    own = {"plane/extraction", "plane/shared_memory", "stages/extraction", "ops/planning"}
    assert know == own | {"stages/replica_update/gradient_sources"}


def follow_to(made: Stepped, step: int, settings: dict[str, Any] = SETTINGS) -> UpdateService:
    """An updater of a run with a job file, after this step."""
    made.run.config.write_bytes(encode_config(job_from(settings)))
    service = made.service(settings)
    while not made.lines() or made.lines()[-1]["step"] < step:
        assert service.work() == 1
    return service


def test_progress_is_seen_without_a_change_of_anything(
    recorded: Recorded, stepped: Callable[..., Stepped]
) -> None:
    made, size = stepped(recorded.logs), recorded.gradients[0].nbytes
    made.run.config.write_bytes(encode_config(job_from(SETTINGS)))
    first = source_progress(made.run)
    assert first is not None and not (made.run.memory / "released").exists()
    assert (first.applied_iteration, first.complete, first.gradient_bytes) == (0, JOB.steps, size)
    assert first.next_is_complete and first.lost_iteration is None
    service = follow_to(made, 2)
    after = source_progress(made.run)
    service.stop()
    assert after is not None
    assert (after.applied_iteration, after.complete) == (2, JOB.steps - 2)
    made.drive()
    last = source_progress(made.run)
    assert last is not None
    assert (last.applied_iteration, last.complete, last.next_is_complete) == (JOB.steps, 0, False)


@pytest.mark.parametrize("kind", ["gap", "closed"])
def test_a_step_that_no_log_has_is_lost_to_who_looks(
    kind: str, recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    spoilt(kind, tmp_path / "peer", recorded.gradients)
    made = stepped([tmp_path / "peer"])
    service = follow_to(made, 2)
    service.stop()
    found = source_progress(made.run)
    assert found is not None and (found.lost_iteration, found.next_is_complete) == (3, False)


def trained(steps: int, gradients: list[np.ndarray]) -> Trainer:
    trainer = Trainer()
    for gradient in gradients[:steps]:
        trainer.step(gradient)
    return trainer


def test_a_run_without_connections_is_saved_at_its_end_and_while_it_runs(
    recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    made = stepped(recorded.logs)
    service = follow_to(made, 3)
    with ReplicaSteps(made.run, None).hold(Step(2)) as pinned:
        (tmp_path / "pinned").mkdir()
        pinned.write(tmp_path / "pinned")
    service.stop()
    kept = save_checkpoint(job_from(SETTINGS), made.run, tmp_path / "kept")
    assert kept is not None
    spec = decode_spec(recorded.spec.read_bytes())
    assert spec.evidence
    for folder, step in ((tmp_path / "pinned", 2), (kept, 3)):
        found = flowcheck.load(folder)
        wanted = trained(step, recorded.gradients)
        assert found["step"] == step
        for theirs, ours in zip(wanted.parameters, found["model"].values(), strict=True):
            assert torch.equal(theirs.detach(), ours.reshape(theirs.shape))
        assert json.loads((folder / "manifest.json").read_bytes())["evidence"]


def test_a_run_without_connections_takes_a_checkpoint_of_the_trainer(
    recorded: Recorded, stepped: Callable[..., Stepped], tmp_path: Path
) -> None:
    made = stepped(recorded.logs)
    service = follow_to(made, 4, SETTINGS | {"gradient_log": {"taken_steps": 4}})
    trainer = trained(3, recorded.gradients)
    with torch.no_grad():
        trainer.parameters[0].mul_(1.5)
    file = trainer.save(tmp_path / "step-3.pt", 3)
    submit_checkpoint(made.run, read_checkpoint_template(made.run, file), file)
    wanted = [trainer.step(gradient) for gradient in recorded.gradients[3:]]
    while service.work():
        pass
    service.stop()
    lines = {line["step"]: line["parameters_sha256"] for line in made.lines()}
    assert [lines[step] for step in range(4, JOB.steps + 1)] == wanted


def test_a_run_without_connections_is_shown_as_known(
    recorded: Recorded, stepped: Callable[..., Stepped]
) -> None:
    made = stepped(recorded.logs)
    service = follow_to(made, 2)
    state = JobReader(made.run, 1, "job").read(job_from(SETTINGS), 1, 0)
    service.stop()
    assert state.learned and (state.step, state.lag_steps) == (2, JOB.steps - 2)
    assert (state.follows, state.awaits_base) == ("gradients", False)
    assert state.gradient_bytes == recorded.gradients[0].nbytes
    assert (state.addresses, state.diagram, state.under_way) == ((), (), None)


def test_each_kind_of_source_is_in_the_table_of_the_page() -> None:
    page = Path(source_registry.__file__).with_name("README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert rows == [kind.name for kind in source_registry.SOURCE_KINDS]
