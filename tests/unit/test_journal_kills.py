"""The folder of gradients behind SIGKILL: it gives no step that the replica has not, and none that
it gave up. Judged by torch's own optimizer; each life is a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.journal_lives import (
    Life,
    base_on_a_full_disk,
    dies_before_a_commit,
    dies_before_the_commit_behind_a_gap,
    dies_behind_a_commit,
    dies_in_a_base,
    goes_back_behind_a_gap,
    goes_back_on_a_disk_that_fails,
    goes_back_on_a_full_disk,
    goes_back_while_nothing_can_wait,
    goes_on,
    lives,
    starts_and_ends,
    torchs,
)
from support.kept_replica import again
from support.refused_as import refused_as

from flowcheck.findings.catalog.step_journals import (
    JOURNAL_ENDS,
    JOURNAL_GAP,
    JOURNAL_GIVEN_UP,
    JOURNAL_NONE_SINCE,
    JOURNAL_REPLACED,
)
from flowcheck.ops.restore.step_lookup import FoundStep


def is_torchs(found: FoundStep, *seeds: int) -> bool:
    own = torchs(seeds)
    held = found.snapshot.parameters
    return all(torch.equal(held[name], value) for name, value in own.items())


def test_a_step_without_a_commit_is_given_neither_before_a_later_life_nor_behind_it(
    tmp_path: Path,
) -> None:
    lives(tmp_path, dies_before_a_commit)
    for later in False, True:
        if later:  # it refuses step 6
            lives(tmp_path, starts_and_ends, ends=0)
        assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5)
        with refused_as(JOURNAL_ENDS, last=5):
            again(tmp_path, 6)
    lives(tmp_path, goes_on, ends=0)  # the copies of step 6 differed: another one is made
    assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5, 106, 107, 108)
    assert is_torchs(again(tmp_path, 6), 1, 2, 3, 4, 5, 106)


def test_a_step_whose_commit_a_kill_left_untold_is_kept(tmp_path: Path) -> None:
    lives(tmp_path, dies_behind_a_commit)
    assert again(tmp_path).snapshot.step == 5, "it waits in shared memory"
    lives(tmp_path, starts_and_ends, ends=0)
    assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5, 6)
    lives(tmp_path, goes_on, ends=0)
    assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5, 6, 107, 108)


def test_a_base_that_a_kill_prevented_ends_no_past(tmp_path: Path) -> None:
    lives(tmp_path, dies_in_a_base)
    lives(tmp_path, starts_and_ends, ends=0)
    assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5)
    lives(tmp_path, goes_on, ends=0)
    assert is_torchs(again(tmp_path), 1, 2, 3, 4, 5, 106, 107, 108)
    assert not again(tmp_path, 4).assumed


@pytest.mark.parametrize(
    "life",
    [
        goes_back_on_a_full_disk,
        goes_back_on_a_disk_that_fails,
        goes_back_while_nothing_can_wait,
        dies_before_the_commit_behind_a_gap,
    ],
)
def test_a_past_that_was_given_up_does_not_come_back_behind_a_kill(
    tmp_path: Path, life: Callable[[Life], None]
) -> None:
    lives(tmp_path, life)
    if life is goes_back_on_a_full_disk:  # the folder says so by itself
        assert is_torchs(again(tmp_path), 1, 2, 3, 4)
        with refused_as(JOURNAL_ENDS, why=JOURNAL_NONE_SINCE()):
            again(tmp_path, 5)
    lives(tmp_path, goes_on, ends=0)
    assert is_torchs(again(tmp_path), 1, 2, 3, 4)
    for step in 5, 6, 8:
        with refused_as(JOURNAL_ENDS, last=4, why=JOURNAL_GAP(step=6)):
            again(tmp_path, step)


def test_a_job_that_goes_back_to_before_a_gap_has_given_up_what_lies_between(
    tmp_path: Path,
) -> None:
    lives(tmp_path, goes_back_behind_a_gap)
    for later in False, True:
        if later:
            lives(tmp_path, goes_on, ends=0)
        assert is_torchs(again(tmp_path), 1, 2, 3)
        with refused_as(JOURNAL_ENDS, last=3):
            again(tmp_path, 5)


def test_a_state_that_a_base_replaced_is_in_doubt_though_the_base_is_not_kept(
    tmp_path: Path,
) -> None:
    lives(tmp_path, base_on_a_full_disk)
    for ends in None, 0:
        if ends is not None:
            lives(tmp_path, goes_on, ends=ends)
        with refused_as(JOURNAL_REPLACED, step=5, to=5):
            again(tmp_path)
        for step in 4, 5:
            assert again(tmp_path, step).assumed == (JOURNAL_GIVEN_UP(step=step, at=5, to=5),)
