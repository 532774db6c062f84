"""The whole chain of processes on real NCCL traffic, judged by the truth files and by torch."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.chain import (
    Command,
    flowcheck,
    sha256,
    torch_steps,
    truth_steps,
)

from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import STEP_NOT_RECORDED
from flowcheck.findings.catalog.replica_update_notes import EMPTY_STATE
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.ops.watch.state.state_reader import StateReader

pytestmark = pytest.mark.xdist_group("chain")
"""A replay serves two tests."""
CAPTURE = "iter_40000_p2p_iter10"


def dpdk_missing() -> str:
    try:
        from flowcheck import _dpdk  # noqa: F401
    except ImportError as error:
        return f"no DPDK here: {error}"
    return ""


def judged(result: dict[str, Any], truth: Path, optimizer: str, **settings: Any) -> None:
    """Every gradient is the truth's, every parameter torch's."""
    weights, gradients = truth_steps(truth, CAPTURE)
    wanted = torch_steps(weights, gradients, optimizer, **settings)
    assert result["steps"] == result["complete_steps"] == len(gradients) == 20
    assert [s["step"] for s in result["digests"]] == list(range(1, 21))
    assert [s["gradient_sha256"] for s in result["digests"]] == [sha256(g) for g in gradients]
    assert [s["parameters_sha256"] for s in result["digests"]] == [sha256(p) for p in wanted]


@dataclass(frozen=True)
class Replayed:
    """A replay of CAPTURE with AdamW, its run directory and what it said."""

    run: Path
    result: dict[str, Any]


def replayed(captures: Path, folder: Path, source: str) -> Replayed:
    with Command(
        "replay", captures / f"{CAPTURE}.pcapng", "--optimizer", "adamw", "--lr", "0.001",
        "--digests", "--json", "--source", source, "--out", folder / "out", "--run", folder / "run",
    ) as command:  # fmt: skip
        return Replayed(folder / "run", command.json())


@pytest.fixture(scope="module")
def by_file(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return replayed(captures, tmp_path_factory.mktemp("file"), "file")


@pytest.mark.parametrize("source", [pytest.param("file", marks=pytest.mark.nightly), "dpdk"])
def test_twenty_steps_of_a_real_job_end_in_the_parameters_torch_computes(
    captures: Path, truth: Path, tmp_path: Path, source: str, by_file: Replayed
) -> None:
    if source == "dpdk" and dpdk_missing():
        pytest.skip(dpdk_missing())
    result = (by_file if source == "file" else replayed(captures, tmp_path, source)).result
    judged(result, truth, "adamw", lr=0.001)
    weights, gradients = truth_steps(truth, CAPTURE)
    saved = load_file(Path(result["checkpoint"]) / "model.safetensors")
    (parameters,) = saved.values()
    wanted = torch_steps(weights, gradients, "adamw", lr=0.001)[-1]
    assert parameters.reshape(-1).tobytes() == wanted.tobytes()
    assert (result["frames"], result["captured_frames"]) == (1417, 1417)
    assert "point-to-point" in " ".join(one["sentence"] for one in result["assumed"])
    manifest = json.loads((Path(result["checkpoint"]) / "manifest.json").read_text())
    assert manifest["assumed"] == result["assumed"]
    assert manifest["assumed"][-1]["code"] == EMPTY_STATE.code


def test_a_job_file_states_the_optimizer_and_a_small_ring_wraps_without_harm(
    captures: Path, truth: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'digests = true\n[[source]]\nfile = "replaced"\n[ring]\nslots = 32\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.05\nmomentum = 0.9\nnesterov = true\n'
    )
    with Command(
        "replay", captures / f"{CAPTURE}.pcapng", "--job", job, "--json", "--source", "file"
    ) as command:
        judged(command.json(), truth, "sgd", lr=0.05, momentum=0.9, nesterov=True)


@pytest.mark.nightly
def test_an_optimizer_nobody_stated_is_assumed_aloud(captures: Path, truth: Path) -> None:
    code, out, err = flowcheck(
        "replay", captures / f"{CAPTURE}.pcapng", "--source", "file", "--digests"
    )
    assert code == 0
    assert "assumed optimizer sgd" in err
    assert "assumed learning rate 0.01" in err
    weights, gradients = truth_steps(truth, CAPTURE)
    assert sha256(torch_steps(weights, gradients, "sgd", lr=0.01)[-1]) in out


@pytest.mark.nightly
def test_a_capture_without_a_start_up_says_what_is_missing(captures: Path) -> None:
    code, out, _ = flowcheck("replay", captures / "allreduce_addstep.pcapng", "--source", "file")
    assert code == 1
    assert "no job was learned: DDP's start-up messages were not seen" in " ".join(out.split())


def test_a_finished_replay_shows_that_it_ended_and_can_be_audited(
    captures: Path, truth: Path, tmp_path: Path, by_file: Replayed
) -> None:
    code, out, _ = flowcheck("status", "--run", by_file.run, "--json")
    state = json.loads(out)
    ended, (job,) = state["ended"], state["jobs"]
    assert code == 1, "nothing runs there"
    assert (ended["how"], ended["by"]["code"]) == ("drained", "end.captures_read")
    assert (ended["replay"], state["health"]["reason"]["code"]) == (True, "end.ended")
    assert job["step_ns"] < ended["time_ns"] < time.time_ns()
    kept = {"step": 20, "why": None, "in_flight": None, "checkpoint": by_file.result["checkpoint"]}
    assert ended["jobs"] == [kept]
    assert (job["step"], job["audited_step"]) == (20, None)
    weights, gradients = truth_steps(truth, CAPTURE)
    trainer = torch_steps(weights, gradients, "adamw", lr=0.001)

    def audit(step: int, parameters: np.ndarray) -> int:
        tensor = torch.from_numpy(parameters.reshape(1, -1).copy())
        torch.save({"model": {"w": tensor}, "step": step}, tmp_path / "trainer.pt")
        return audit_command.run(by_file.run, tmp_path / "trainer.pt", as_json=True)

    assert [audit(7, trainer[6]), audit(20, trainer[19]), audit(8, trainer[6])] == [0, 0, 1]
    with pytest.raises(StateError) as refused:
        audit(21, trainer[19])
    assert refused.value.finding.is_any_of(STEP_NOT_RECORDED)
    assert refused.value.finding.arguments["at"] == 20
    (job,) = StateReader(by_file.run).state().jobs
    assert (job.audited_step, job.audit_passed) == (8, False)


def test_a_learned_job_starts_another_run_that_need_not_learn(
    captures: Path, truth: Path, tmp_path: Path, by_file: Replayed
) -> None:
    capture = captures / f"{CAPTURE}.pcapng"
    job, learned = tmp_path / "job.toml", by_file.run / "learned/job.json"
    job.write_text(
        f'digests = true\nlearned = "{learned}"\n[[source]]\nfile = "replaced"\n'
        '[optimizer]\nname = "adam"\nlearning_rate = 0.01\n'
    )
    second = tmp_path / "second"
    with Command(
        "replay", capture, "--job", job, "--json", "--source", "file", "--run", second
    ) as command:
        judged(command.json(), truth, "adam", lr=0.01)
    events = [json.loads(line) for line in (second / "events.jsonl").read_text().splitlines()]
    told = [(event["kind"], event.get("stage")) for event in events]
    assert told.index(("learned", "extract")) < told.index(("up", "extract")), "known at the start"
    assert not (second / "memory").exists()


@pytest.mark.nightly
def test_two_mirrors_of_one_job_are_one_job(captures: Path, truth: Path) -> None:
    capture = captures / f"{CAPTURE}.pcapng"
    with Command(
        "replay", capture, capture, "--source", "file", "--optimizer", "sgd", "--lr", "0.01",
        "--digests", "--json",
    ) as command:  # fmt: skip
        result = command.json()
    judged(result, truth, "sgd", lr=0.01)
    assert result["captured_frames"] == 2 * 1417
