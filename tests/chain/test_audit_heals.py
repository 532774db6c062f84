"""Elements that lost frames tainted are made exact by the checkpoints that the trainer writes
anyway: by a file of a step since the loss that is equal in all else. Judged by torch."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from support.netib import Truth, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from test_tainted_steps import LEARNING_RATE, LOST_AT, job, trained

from flowcheck.findings.catalog.file_audits import (
    ELEMENTS_HEALED,
    HEAL_WITHOUT_STATE,
    HEALED_BY_DIGESTS,
    NOT_HEALED,
)
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.state_file.file_header import peek_tainted, peek_versions
from flowcheck.replica.taint import elements_of_losses, read_losses
from flowcheck.stages.job_state.audited_files import AuditedFile, read_audited_files
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.xdist_group("audit watch"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]
STEPS = 8
STATE_BYTES = 12 * sum(prod(shape) for shape in job("Simple").shapes)


def saved(truth: Truth, step: int, file: Path, *, optimizer: bool = True) -> dict[str, Any]:
    """What torch's training wrote at a step."""
    parameters, rule = trained(truth, step)
    tree: dict[str, Any] = {"net": {f"layer{n}": p.detach() for n, p in enumerate(parameters)}}
    tree |= {"opt": rule.state_dict()} if optimizer else {}
    tree["global_step"] = step
    torch.save(tree, file)
    return tree


@contextmanager
def tainted_chain(folder: Path, protocol: str, keep_bytes: int) -> Iterator[tuple[RunDir, Truth]]:
    """A chain that took all steps of a capture that lost two frames, and watches folder/runs."""
    made = generate(job(protocol), folder)
    capture = made.files[0].read_bytes()
    records = records_of(capture)
    first = int(LOST_AT * len(records))
    kept = (one for number, one in enumerate(records) if number not in (first, first + 40))
    made.files[0].write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(kept))
    (folder / "runs").mkdir()
    (folder / "job.toml").write_text(
        f'[[source]]\nfile = "{made.files[0]}"\n[replica]\nkeep_bytes = {keep_bytes}\n'
        f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'
        f'[audit]\nfolder = "{folder}/runs"\ninterval_s = 0.1\n'
    )
    where = RunDir(folder / "run")
    try:
        with Command("up", folder / "job.toml", "--run", where.root):
            wait_until(lambda: at_step(where) == STEPS, LIMIT_S, "all steps")
            wait_until(lambda: "audit" in where.stage_pids(), LIMIT_S, "the stage")
            yield where, made.truth
    finally:
        wait_until(lambda: not where.stage_pids(), 60, "the end of the killed chain's stages")
        where.remove()


def at_step(where: RunDir) -> int:
    return max(peek_versions(where.replica)[1], default=0) if where.replica.exists() else 0


def line_of(where: RunDir, file: Path) -> AuditedFile:
    """What came of a file, as soon as that is known."""

    def told() -> list[AuditedFile]:
        own = [one for one in read_audited_files(where) if one.file == str(file)]
        return [one for one in own if one.outcome != "reading"]

    wait_until(lambda: bool(told()), LIMIT_S, file.name)
    [line] = told()
    return line


def reason_of(line: AuditedFile) -> str:
    assert line.heal is not None and line.heal.is_any_of(NOT_HEALED)
    assert line.healed_elements == 0
    return str(line.heal.arguments["reason"].code)


def tainted_count(where: RunDir) -> int:
    ranges = elements_of_losses(read_losses(where.replica), at_step(where))
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def check_exact(where: RunDir, truth: Truth) -> None:
    """The newest step is torch's own, bit for bit, and nothing of it is tainted."""
    assert STEPS not in peek_tainted(where.replica) and not tainted_count(where)
    taken = copy_snapshot(where.replica, optimizer_of_run(where), STEPS)
    parameters, rule = trained(truth, STEPS)
    assert not taken.tainted
    pairs = zip(taken.parameters.values(), taken.states, parameters, strict=True)
    for own, states, right in pairs:
        assert torch.equal(own.view(torch.int32), right.detach().view(torch.int32))
        for kind in ("exp_avg", "exp_avg_sq"):
            theirs = rule.state[right][kind].view(torch.int32)
            assert torch.equal(torch.as_tensor(states[kind]).view(torch.int32), theirs)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "kept"),
    [
        pytest.param("Simple", 8, id="whole steps"),
        pytest.param("LL128", 0, id="digests", marks=pytest.mark.nightly),
    ],
)
def test_a_file_of_a_step_since_the_loss_heals(protocol: str, kept: int, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with tainted_chain(tmp_path, protocol, kept * STATE_BYTES) as (where, truth):
        count = tainted_count(where)
        assert count > 0
        saved(truth, 3, runs / "step-3.pt")
        before = line_of(where, runs / "step-3.pt")
        assert (before.outcome, before.heal, tainted_count(where)) == ("equal", None, count)

        wrong = saved(truth, 7, tmp_path / "wrong.pt")
        number = int(np.argmin([p.numel() for p in wrong["net"].values()]))
        wrong["net"][f"layer{number}"].view(torch.int32)[3] ^= 1
        torch.save(wrong, runs / "wrong-step-7.pt")
        differs = line_of(where, runs / "wrong-step-7.pt")
        assert (differs.outcome, differs.heal, tainted_count(where)) == ("differs", None, count)

        saved(truth, 7, runs / "bare-step-7.pt", optimizer=False)
        bare = line_of(where, runs / "bare-step-7.pt")
        assert bare.outcome == "equal" and reason_of(bare) == HEAL_WITHOUT_STATE.code
        assert tainted_count(where) == count

        code, out, err = flowcheck("audit", tmp_path / "wrong.pt", "--run", where.root, "--json")
        assert code == 0, err  # as it was saved: right
        assert json.loads(out)["heal"]["code"] == "audit.only_compared"
        assert tainted_count(where) == count, "this command only compares"

        healed = (healed_by_stage if kept else healed_by_command)(where, truth, tmp_path, count)
        assert healed.outcome == "equal" and healed.heal is not None
        assert healed.heal.is_any_of(ELEMENTS_HEALED if kept else HEALED_BY_DIGESTS), healed.heal
        told = healed.heal.arguments
        assert (told["elements"], told["step"], told["at"], told["left"]) == (count, 6, STEPS, 0)
        assert healed.healed_elements == count
        check_exact(where, truth)

        saved(truth, 7, runs / "step-7.pt")
        later = line_of(where, runs / "step-7.pt")
        assert (later.outcome, later.heal) == ("equal", None), "nothing is left to heal"
        check_exact(where, truth)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_base_that_is_equal_in_all_but_what_is_tainted_heals_that(tmp_path: Path) -> None:
    """These elements were not compared: it is no proof that there is nothing to replace."""
    with tainted_chain(tmp_path, "Simple", 8 * STATE_BYTES) as (where, truth):
        saved(truth, 6, tmp_path / "step-6.pt")
        words = ("base", tmp_path / "step-6.pt", "--run", where.root)
        count = tainted_count(where)
        code, out, err = flowcheck(*words)
        assert code == 0, err
        assert f"{count} tainted elements of the parameters are exact again" in " ".join(
            out.split()
        )
        check_exact(where, truth)
        assert not any(json.loads(line)["base"] for line in where.audits.read_text().splitlines())
        code, out, err = flowcheck(*words)
        assert code == 0 and "nothing to replace" in " ".join(out.split()), out + err
        check_exact(where, truth)


def healed_by_stage(where: RunDir, truth: Truth, folder: Path, _: int) -> AuditedFile:
    """By a folder of torch.distributed.checkpoint, which appears in the watched one."""
    tree = saved(truth, 6, folder / "step-6.pt")
    own = tree["opt"]  # by name, as torch.distributed.checkpoint.state_dict has it
    groups = [one | {"params": [f"layer{n}" for n in one["params"]]} for one in own["param_groups"]]
    named = {"state": {f"layer{n}": s for n, s in own["state"].items()}, "param_groups": groups}
    whole = {"model": tree["net"], "optimizer": named, "step": 6}
    dcp.save(whole, checkpoint_id=folder / "runs/step-6")
    return line_of(where, folder / "runs/step-6")


def healed_by_command(where: RunDir, truth: Truth, folder: Path, count: int) -> AuditedFile:
    """By a command that watches another folder, and prints what came of it."""
    (folder / "more").mkdir()
    saved(truth, 6, folder / "more/step-6.pt")
    options = ("--existing", "--interval", "0.1")
    with Command("audit", "--watch", folder / "more", "--run", where.root, *options) as command:
        line = line_of(where, folder / "more/step-6.pt")
        command.process.send_signal(signal.SIGINT)
        code, out, err = command.result()
    assert (code, err) == (0, ""), err
    assert f"{count:,} elements healed" in out and "only the digests of step 6" in out
    return line
