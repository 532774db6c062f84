"""Lives of a replica with a folder of gradients, each in a process of its own that SIGKILL ends."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.kept_replica import SAVED, journal_of
from support.steps import ADAMW, layout_of, made

from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.checkpoint_files.direct_io import DirectFile
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import PARAMETERS
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.replica.step_journal.gap_records import GapOnDisk
from flowcheck.replica.step_journal.journal_folder import JournalFolder
from flowcheck.replica.step_journal.waiting_entries import WaitingEntries
from flowcheck.step_numbers import Step

LIMIT_S = 120.0
MIB = 1 << 20
_LIVES = multiprocessing.get_context("forkserver")


def gradients_of(net: torch.nn.Module, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn_like(p) for p in net.parameters()]


def torchs(seeds: Sequence[int]) -> dict[str, torch.Tensor]:
    """Parameters after a step with each seed's gradient, by torch's own optimizer."""
    net, optimizer = made()
    for seed in seeds:
        for p, gradient in zip(net.parameters(), gradients_of(net, seed), strict=True):
            p.grad = gradient
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


class Life:
    """One of the replica in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.net = folder, made()[0]
        path = folder / "replica"
        if path.exists():
            self.replica = Replica.open(path, ADAMW)
        else:
            weights = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
            layout = layout_of(self.net)
            self.replica = Replica.create(path, layout, ADAMW, weights, keep_bytes=MIB)
        self.journal = journal_of(folder, [], self.replica, 64 * MIB)

    def step(self, seed: int) -> None:
        self.on_disk()
        self.hasty_step(seed)

    def hasty_step(self, seed: int) -> None:
        """Whatever waits for the disk."""
        parts = [part.reshape(-1) for part in gradients_of(self.net, seed)]
        flat = torch.cat(parts).numpy()
        self.journal.before_step(flat, None)
        self.replica.apply(Step(self.replica.step + 1), flat)
        if self.replica.step == SAVED and not (self.folder / "saved").exists():
            found = copy_snapshot(self.replica.path, ADAMW)
            save_trainer_state(trainer_state(found), self.folder / "saved", found.layout)

    def base(self) -> None:
        """A checkpoint of the trainer of this step that differs."""
        sections = {name: array.copy() for name, array in self.replica.sections().items()}
        sections[PARAMETERS][0] += 1
        self.replica.rebase(self.replica.step, sections, replays=False)

    def on_disk(self) -> None:
        """Waits until nothing waits for the disk."""
        journal = self.journal._journal
        assert journal is not None and journal._waiting is not None
        while journal._waiting.waiting():
            journal._thread.join(0.001)

    def dies_instead_of(self, owner: type, name: str, *, behind: bool = False) -> None:
        """Of the next call; behind: after it."""
        real = getattr(owner, name)

        def dies(*given: Any, **named: Any) -> None:
            if behind:
                real(*given, **named)
            self.on_disk()
            dead()

        setattr(owner, name, dies)


def dead() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def dies_before_a_commit(life: Life) -> None:
    for seed in range(1, 6):
        life.step(seed)
    life.dies_instead_of(StateFile, "_commit")
    life.step(6)


def dies_behind_a_commit(life: Life) -> None:
    for seed in range(1, 6):
        life.step(seed)
    life.dies_instead_of(StateFile, "_commit", behind=True)
    life.step(6)


def dies_in_a_base(life: Life) -> None:
    for seed in range(1, 6):
        life.step(seed)
    life.dies_instead_of(StateFile, "_commit")
    life.base()


def at_step_4_again(life: Life) -> None:
    for seed in range(1, 6):
        life.step(seed)
    life.on_disk()
    life.replica.go_back(Step(4))


def goes_back_on_a_full_disk(life: Life) -> None:
    at_step_4_again(life)
    DirectFile.put = full  # type: ignore[method-assign]
    life.step(105)
    life.on_disk()
    dead()


def goes_back_behind_a_gap(life: Life) -> None:
    """To a state before it."""
    for seed in range(1, 6):
        life.step(seed)
    life.on_disk()
    DirectFile.put = full  # type: ignore[method-assign]
    life.step(6)
    life.replica.go_back(Step(SAVED))
    life.step(104)
    life.step(105)
    life.on_disk()
    dead()


def goes_back_on_a_disk_that_fails(life: Life) -> None:
    """So that it takes no word of the gap either."""
    GapOnDisk.note = lambda *_: False  # type: ignore[method-assign]
    goes_back_on_a_full_disk(life)


def base_on_a_full_disk(life: Life) -> None:
    for seed in range(1, 6):
        life.step(seed)
    life.on_disk()
    JournalFolder.append = full  # type: ignore[method-assign]
    life.base()
    life.step(106)
    life.on_disk()
    dead()


def goes_back_while_nothing_can_wait(life: Life) -> None:
    """As for a disk that hangs."""
    at_step_4_again(life)
    WaitingEntries.put = lambda *_: None  # type: ignore[method-assign]
    life.hasty_step(105)
    dead()


def dies_before_the_commit_behind_a_gap(life: Life) -> None:
    at_step_4_again(life)
    put = WaitingEntries.put
    WaitingEntries.put = lambda *_: None  # type: ignore[method-assign]
    life.hasty_step(105)
    WaitingEntries.put = put  # type: ignore[method-assign]
    life.dies_instead_of(StateFile, "_commit")
    life.hasty_step(6)


def starts_and_ends(life: Life) -> None:
    life.journal.close()
    life.replica.close()


def goes_on(life: Life) -> None:
    """With what the trainer really had, to step 8."""
    while life.replica.step < 8:
        life.step(100 + life.replica.step + 1)
    starts_and_ends(life)


def _live(folder: Path, does: Callable[[Life], None]) -> None:
    life = Life(folder)
    if np.isnan(life.replica.parameters()).any():
        raise AssertionError("no state")
    does(life)


def lives(folder: Path, does: Callable[[Life], None], ends: int = -signal.SIGKILL) -> None:
    """ends: its exit code."""
    _LIVES.set_forkserver_preload(["support.journal_lives"])
    process = _LIVES.Process(target=_live, args=(folder, does))
    process.start()
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == ends
