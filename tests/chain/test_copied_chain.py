"""A chain's replica is copied over TCP by another chain, which has neither its capture nor a file
of it. The first one stands still (SIGSTOP) and a third takes its place, it comes back, and all
machines but the copy's die. Judged by torch's own optimizer."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from support.free import free_port
from support.netib import generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from test_tainted_steps import LEARNING_RATE, job, trained

from flowcheck.findings.catalog.replica_copies import (
    COPY_EPOCH,
    COPY_NO_SOURCE,
    COPY_SOURCE_GONE,
)
from flowcheck.replica.state_file.file_header import peek_commit
from flowcheck.stages.replica_copies.copy_records import read_copies, read_copy
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS, FIRST_HAS = 8, 0.5
"""FIRST_HAS: share of the capture that the first chain gets."""
OPTIMIZER = f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'


class Chains:
    """Several chains, each as on a machine of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = folder, ExitStack()

    def up(self, name: str, tables: str) -> RunDir:
        file = self._folder / f"{name}.toml"
        file.write_text(tables + OPTIMIZER)
        run = RunDir(self._folder / name)
        self._open.enter_context(Command("up", file, "--run", run.root))
        return run

    def signal(self, run: RunDir, number: signal.Signals) -> None:
        """To all of a chain's processes."""
        for pid in run.stage_pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def dies(self, run: RunDir) -> None:
        """With its machine: shared memory and all."""
        memory = run.memory
        self.signal(run, signal.SIGKILL)
        wait_until(lambda: not run.stage_pids(), LIMIT_S, "the end of a killed chain")
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(run.root)

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def chains(tmp_path: Path) -> Iterator[Chains]:
    made = Chains(tmp_path)
    yield made
    made.close()


def step_of(run: RunDir) -> int:
    with suppress(Exception):  # it comes up, or is written just now
        return peek_commit(run.replica)[0].step
    return -1


def url_of(run: RunDir) -> str:
    wait_until(lambda: read_copies(run) is not None, LIMIT_S, "the server of copies")
    record = read_copies(run)
    assert record is not None
    return record.url


def follower_step(run: RunDir) -> int | None:
    record = read_copies(run)
    return record.followers[0].step if record is not None and record.followers else None


def says(run: RunDir, *entries: Any) -> bool:
    record = read_copy(run)
    return record is not None and record.why_not is not None and record.why_not.is_any_of(*entries)


@pytest.mark.timeout(400)
def test_the_newest_step_of_a_copy_outlives_all_other_machines(
    chains: Chains, tmp_path: Path
) -> None:
    made = generate(job("LL128"), tmp_path)
    whole = made.files[0].read_bytes()
    records = records_of(whole)
    part = tmp_path / "part.pcap"
    part.write_bytes(whole[:FILE_HEADER_BYTES] + b"".join(records[: int(FIRST_HAS * len(records))]))
    first = chains.up("first", f'[[source]]\nfile = "{part}"\n[copies]\nport = 0\n')
    capture = f'[[source]]\nfile = "{made.files[0]}"\n'
    port = free_port()
    own = [url_of(first), f"http://127.0.0.1:{port}"]
    copy = chains.up("copy", f"[gradients]\nchains = {json.dumps(own)}\ntimeout_s = 8\n")
    wait_until(lambda: step_of(first) > 0 and step_of(copy) > 0, LIMIT_S, "the first steps")
    # Only now: a copy that found this one first would follow no chain of an earlier epoch.
    later = chains.up("later", capture + f"[copies]\nport = {port}\nepoch = 1\n")
    wait_until(lambda: step_of(later) == STEPS, LIMIT_S, "the last step")
    at = step_of(first)
    assert 0 < at < STEPS
    wait_until(lambda: step_of(copy) == at, LIMIT_S, "the copy of the first chain")
    wait_until(lambda: follower_step(first) == at, LIMIT_S, "who follows the first chain")
    _, out, _ = flowcheck("status", "--run", first.root, "--json")
    [told] = json.loads(out)["jobs"][0]["copied_by"]["followers"]
    assert (told["step"], told["lag_steps"]) == (at, 0) and told["sent_bytes"] > 0

    chains.signal(first, signal.SIGSTOP)
    wait_until(lambda: step_of(copy) == STEPS, LIMIT_S, "the successor's steps")
    record = read_copy(copy)
    assert record is not None and record.states == 1, "of the first chain; then changes alone"
    chains.signal(first, signal.SIGCONT)
    chains.dies(later)
    wait_until(lambda: says(copy, COPY_EPOCH), LIMIT_S, "the refusal of an earlier epoch")
    assert step_of(copy) == STEPS
    chains.dies(first)
    wait_until(lambda: says(copy, COPY_SOURCE_GONE, COPY_NO_SOURCE), LIMIT_S, "that it is gone")
    _, out, _ = flowcheck("status", "--run", copy.root, "--json")
    state = json.loads(out)["jobs"][0]
    assert state["copy_of"]["why_not"]["code"] == state["health"]["reason"]["code"]
    assert state["step"] == STEPS and state["copy_of"]["lag_steps"] == 0

    words = ["restore", "--run", copy.root, "--format", "torch", "--out", tmp_path / "last.pt"]
    code, out, err = flowcheck(*words)
    assert code == 0, out + err
    parameters, optimizer = trained(made.truth, STEPS)
    again = torch.load(tmp_path / "last.pt")
    assert again["step"] == STEPS
    resumed = [torch.nn.Parameter(value.clone()) for value in again["model"].values()]
    goes_on = torch.optim.AdamW(resumed, lr=LEARNING_RATE)
    goes_on.load_state_dict(again["optimizer"])
    for one, other in zip(resumed, parameters, strict=True):
        assert torch.equal(one, other)
        torch.manual_seed(1)
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    goes_on.step()
    optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(resumed, parameters, strict=True))
