"""A trainer's checkpoint that is given to the updater: taken or withdrawn, never both, and answered
once, wherever the command or the updater is killed."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from support.file_kills import explore, lacks
from support.lifecycle import checkpoints, follow, waiting
from support.lives import Both
from support.refused_as import refused_as
from test_base_command import STEPS, Trainer, first_life, frames_of, play, resumed  # noqa: F401

from flowcheck.findings.catalog.run_directories import (
    ANOTHER_REQUEST,
    FILE_GONE,
    NO_BASE_AWAITED,
    REQUEST_WITHDRAWN,
    STILL_TAKEN,
)
from flowcheck.messages import Note
from flowcheck.ops.trainer_checkpoint import base_command
from flowcheck.stages.job_state import given_checkpoint_request, lifecycle_writers
from flowcheck.stages.job_state.given_checkpoint_request import (
    await_answer,
    clear_request,
    is_asked,
    read_sections,
    refuse_request,
    request_answer,
    submit_request,
    take_request,
    withdraw_request,
)
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.job_state.lifecycle_record_schema import CheckpointRequest, RequestKind
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

SECTIONS = {"parameters": np.arange(500, dtype=np.float32)}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    made.learned_folder.mkdir()
    return made


def submitted(run: RunDir, step: int = 7) -> str:
    return submit_request(run, RequestKind.ANCHOR, Step(step), SECTIONS, "s.pt", after=2)


def updater(run: RunDir) -> UpdateLifecycle:
    return UpdateLifecycle(run, pytest.fail)


def taken(run: RunDir) -> CheckpointRequest:
    request = take_request(updater(run), Step(10**6))
    assert request is not None
    return request


def test_what_is_given_is_taken_answered_and_cleared_away(run: RunDir) -> None:
    asked = submitted(run)
    assert is_asked(run) and request_answer(run, asked) is None
    lifecycle = updater(run)
    request = take_request(lifecycle, Step(10**6))
    assert (
        request
        == waiting(run)
        == CheckpointRequest(
            id=asked,
            kind=RequestKind.ANCHOR,
            file="request-anchor.safetensors",
            step=Step(7),
            source="s.pt",
            after=2,
        )
    )
    assert request is not None
    np.testing.assert_array_equal(read_sections(run, request)["parameters"], SECTIONS["parameters"])
    lifecycle.answer(request, Step(9))
    clear_request(run, request)
    assert await_answer(run, asked, 1.0, "the file").at == 9
    assert (
        not is_asked(run) and take_request(lifecycle, Step(10**6)) is None and not checkpoints(run)
    )


def test_one_waits_at_a_time(run: RunDir) -> None:
    first = submitted(run)
    with refused_as(ANOTHER_REQUEST):
        submitted(run, 8)
    assert taken(run).step == 7
    with refused_as(ANOTHER_REQUEST):
        submitted(run, 8)
    refuse_request(lifecycle := updater(run), taken(run), Step(7), NO_BASE_AWAITED())
    second = submitted(run, 8)
    assert taken(run).step == 8
    assert [one.id for one in lifecycle.part.answers] == [first] != [second]


def test_one_that_is_not_taken_yet_is_withdrawn_and_one_that_is_is_not(run: RunDir) -> None:
    with refused_as(REQUEST_WITHDRAWN, file="the file", seconds=0.0):
        await_answer(run, submitted(run), 0.0, "the file")
    assert (
        not is_asked(run)
        and not checkpoints(run)
        and take_request(updater(run), Step(10**6)) is None
    )
    asked = submitted(run)
    request = taken(run)
    assert not withdraw_request(run, asked)
    with refused_as(STILL_TAKEN, file="the file"):
        await_answer(run, asked, 0.0, "the file")
    assert waiting(run) == request and checkpoints(run)
    updater(run).answer(request, Step(7))
    assert not withdraw_request(run, asked)


def test_an_updater_killed_before_its_answer_takes_it_again_and_one_killed_behind_it_does_not(
    run: RunDir,
) -> None:
    submitted(run)
    request = taken(run)
    assert taken(run) == request
    updater(run).answer(request, Step(7))
    assert is_asked(run)
    assert take_request(updater(run), Step(10**6)) is None
    assert not is_asked(run) and not checkpoints(run)


def test_a_command_killed_before_it_asked_leaves_a_file_that_nobody_takes(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_checkpoint_request, "write_atomically", _killed)
    with pytest.raises(SystemExit):
        submitted(run)
    monkeypatch.undo()
    assert (
        checkpoints(run) and not is_asked(run) and take_request(updater(run), Step(10**6)) is None
    )
    submitted(run, 8)
    assert taken(run).step == 8 and len(checkpoints(run)) == 1


def _killed(*_: Any, **__: Any) -> None:
    raise SystemExit


def test_who_holds_the_lock_keeps_no_updater_waiting(run: RunDir) -> None:
    with given_checkpoint_request._locked(run) as alone:
        assert alone
        with refused_as(ANOTHER_REQUEST):
            submitted(run)
    asked = submitted(run)
    with given_checkpoint_request._locked(run):
        assert take_request(updater(run), Step(10**6)) is None
    assert taken(run).id == asked


def test_what_is_withdrawn_while_it_is_taken_is_one_of_both(run: RunDir) -> None:
    found = set()
    for turn in range(200):
        asked, lifecycle = submitted(run), updater(run)
        begin, told = Barrier(2), {}

        def withdraw(asked: str = asked, begin: Barrier = begin, told: Any = told) -> None:
            begin.wait()
            told["withdrawn"] = withdraw_request(run, asked)

        thread = Thread(target=withdraw)
        thread.start()
        begin.wait()
        request = take_request(lifecycle, Step(10**6))
        thread.join()
        # One that was just being withdrawn is looked for again in the next turn.
        request = take_request(lifecycle, Step(10**6)) if request is None else request
        assert told["withdrawn"] == (request is None), turn
        found.add(told["withdrawn"])
        if request is not None:
            refuse_request(lifecycle, request, Step(0), NO_BASE_AWAITED())
        assert not is_asked(run) and not checkpoints(run)
    assert found, "either may win"


def no_space(times: int) -> Callable[..., None]:
    """A disk that is full so often."""
    write, left = lifecycle_writers.write_atomically, [times]

    def written(*words: Any, **named: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*words, **named)

    return written


def test_a_full_disk_keeps_a_request_waiting_and_a_refusal_makes_its_own_room(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, lifecycle = submitted(run), updater(run)
    monkeypatch.setattr(lifecycle_writers, "write_atomically", no_space(1))
    assert take_request(lifecycle, Step(10**6)) is None and waiting(run) is not None
    request = take_request(lifecycle, Step(10**6))
    assert request is not None
    monkeypatch.setattr(lifecycle_writers, "write_atomically", no_space(1))
    refuse_request(lifecycle, request, Step(3), NO_BASE_AWAITED())
    answer = request_answer(run, asked)
    assert answer is not None and answer.refused == NO_BASE_AWAITED() and not checkpoints(run)
    submitted(run)
    request = take_request(lifecycle, Step(10**6))
    assert request is not None
    monkeypatch.setattr(lifecycle_writers, "write_atomically", no_space(2))
    with pytest.raises(OSError, match="No space"):
        refuse_request(lifecycle, request, Step(3), NO_BASE_AWAITED())
    monkeypatch.undo()
    with refused_as(FILE_GONE):
        read_sections(run, taken(run))


def test_a_file_that_is_gone_or_that_nothing_waits_for_is_refused_and_the_updater_goes_on(
    play: Callable[..., Both],  # noqa: F811
    resumed: tuple[Trainer, Path],  # noqa: F811
) -> None:
    trainer, file = resumed
    frames, _ = frames_of(trainer, after=first_life())
    both = play(frames)
    run = both.chain.run
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 2)
    base_command.submit_base(run, both.config, file)
    asked = waiting(run)
    assert asked is not None
    (run.learned_folder / asked.file).unlink()
    both.drive()
    answer = request_answer(run, asked.id)
    assert answer is not None and answer.refused is not None
    assert answer.refused.code == FILE_GONE.code
    assert answer.refused in [m.finding for m in both.chain.heard.of(Note)]
    base_command.submit_base(run, both.config, file)
    both.drive()
    late = submit_request(run, RequestKind.BASE, Step(3), SECTIONS, "s.pt")
    both.drive()
    answer = request_answer(run, late)
    assert answer is not None and answer.refused == NO_BASE_AWAITED() and not checkpoints(run)


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as made:
        yield Path(made)


def made(place: Path) -> RunDir:
    run = RunDir(place)
    run.learned_folder.mkdir(exist_ok=True)
    return run


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_request_is_there_whole_with_its_file_or_not_at_all(folder: Path) -> None:
    def judge(place: Path, when: str) -> None:
        run = RunDir(place)
        if is_asked(run):
            read_sections(run, taken(run))
            refuse_request(updater(run), taken(run), Step(0), NO_BASE_AWAITED())
        submitted(run, 8)
        assert taken(run).step == 8, when
        read_sections(run, taken(run))

    def make(place: Path) -> None:
        follow(made(place), Incarnation())

    explored = explore(folder, make, lambda place: str(submitted(RunDir(place))), judge)  # type: ignore[arg-type, return-value]
    assert explored.torn >= 1 and len(explored.calls) > 8


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("by", ["updater", "command"])
def test_one_is_answered_once_or_withdrawn_wherever_either_is_killed(folder: Path, by: str) -> None:
    def make(place: Path) -> None:
        follow(made(place), Incarnation())
        (place / "asked").write_text(submitted(RunDir(place)))

    def work(place: Path) -> None:
        run = RunDir(place)
        if by == "command":
            withdraw_request(run, (place / "asked").read_text())
            return
        lifecycle = updater(run)
        if (request := take_request(lifecycle, Step(10**6))) is not None:
            read_sections(run, request)
            lifecycle.answer(request, Step(9))
            clear_request(run, request)

    def judge(place: Path, when: str) -> None:
        run, asked = RunDir(place), (place / "asked").read_text()
        if by == "command":
            if is_asked(run):
                assert taken(run).id == asked, when
                read_sections(run, taken(run))
                return
            assert withdraw_request(run, asked), when
            submitted(run, 8)
            assert taken(run).step == 8 and len(checkpoints(run)) == 1, when
            return
        answered = request_answer(run, asked) is not None
        assert withdraw_request(run, asked) or answered or taken(run).id == asked, when
        work(place)
        assert not is_asked(run) and not checkpoints(run), when
        if answered:
            assert [one.id for one in updater(run).part.answers] == [asked], when

    assert len(explore(folder, make, work, judge).calls) >= (8 if by == "updater" else 2)
