"""A copy of a replica over TCP is the replica, bit for bit, at every step: judged by torch's own
optimizers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.authority import Authority
from support.bad_link import BadLink
from support.copied import Copy, Source, Trainer
from support.lives import Killed
from support.refused_as import refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_copies import (
    COPY_AHEAD,
    COPY_ANSWER,
    COPY_AWAITED,
    COPY_BLOCK,
    COPY_BROUGHT,
    COPY_DAMAGED,
    COPY_DIFFERS,
    COPY_EPOCH,
    COPY_EPOCH_TWICE,
    COPY_FOLLOWS,
    COPY_NO_SOURCE,
    COPY_SOURCE_GONE,
    COPY_SUPERSEDED,
    COPY_TAINTED,
    COPY_WENT_BACK,
)
from flowcheck.findings.catalog.replica_state_errors import DIGEST_DIFFERS
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import PARAMETERS
from flowcheck.replica.pending_step import PendingStep
from flowcheck.replica.step_journal.journal_records import JournalLine
from flowcheck.stages.copy_updater import copy_stage
from flowcheck.stages.copy_updater.copy_stage import ChangePosition
from flowcheck.stages.job_state.lifecycle_record_reader import read_record
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.stages.replica_copies.copy_messages import (
    PREFIX,
    AnswerKind,
    CopyAnswer,
    decode_head,
    encode_head,
)
from flowcheck.stages.replica_copies.copy_records import read_copies, read_copy
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.step_numbers import Step

STORES = [(PendingStep, "commit"), (StepLog, "write"), (ChangePosition, "set")]
Made = Callable[..., Any]


@pytest.fixture
def source(shm: Path, tmp_path: Path) -> Iterator[Made]:
    made: list[Source] = []

    def make(name: str = "first", optimizer: str = "adamw", **more: Any) -> Source:
        made.append(Source(tmp_path / name, shm / name, optimizer, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def copy(shm: Path, tmp_path: Path) -> Iterator[Made]:
    made: list[Copy] = []

    def make(*urls: str, optimizer: Any = "adamw", name: str = "copy", **more: Any) -> Copy:
        made.append(Copy(tmp_path / name, shm / name, list(urls), optimizer, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_copy_has_every_step_of_torchs_own_optimizer(
    source: Made, copy: Made, optimizer: str
) -> None:
    first = source(optimizer=optimizer)
    first.step(2)  # the copy comes late
    second = copy(first.url, optimizer=optimizer)
    second.reaches(2)
    for step in range(3, 12):
        first.step()
        second.reaches(step)
        assert first.trainer.is_at(second.replica)
    assert second.lines() == list(range(2, 12))
    assert second.says(COPY_FOLLOWS)
    told = [found for found in second.told() if found.is_any_of(COPY_BROUGHT)]
    assert [found.arguments["step"] for found in told] == [2], "one whole state, then changes"


def revive(copy: Copy) -> None:
    """Starts updaters until one comes up."""
    while True:
        with suppress(Killed):
            copy.again()
            return


def test_an_updater_killed_at_any_store_takes_every_change_once(
    source: Made, copy: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = source()
    first.step(3)
    second = copy(first.url)
    second.reaches(3)
    calls = [0]
    for owner, name in STORES:
        real = getattr(owner, name)

        def changed(*words: Any, real: Any = real, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] % 3 == 1:
                raise Killed
            done = real(*words, **named)
            if calls[0] % 3 == 2:
                raise Killed
            return done

        first.step(4)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, changed)
            while second.step != first.replica.step:
                try:
                    second.until(lambda: second.step == first.replica.step)
                except Killed:
                    revive(second)
    assert calls[0] > 3 * len(STORES)
    second.reaches(first.replica.step)
    assert first.trainer.is_at(second.replica)
    assert second.lines() == list(range(3, first.replica.step + 1))


def test_a_copy_that_is_too_slow_is_brought_up_by_a_state(source: Made, copy: Made) -> None:
    first = source(memory_bytes=0)  # room for the three newest changes
    second = copy(first.url)
    second.reaches(0)
    first.step(10)
    second.reaches(10)
    assert first.trainer.is_at(second.replica)
    first.step()
    second.reaches(11)
    assert first.trainer.is_at(second.replica)
    brought = [found for found in second.told() if found.is_any_of(COPY_BROUGHT)]
    assert [found.arguments["step"] for found in brought] == [0, 10]
    assert second.lines()[-2:] == [10, 11]


def test_a_block_with_another_digest_is_fetched_anew(source: Made, copy: Made) -> None:
    first = source()
    link = BadLink(first.url)
    second = copy(link.url)
    second.reaches(0)
    for step in range(1, 4):
        link.damages = 2
        first.step()
        second.reaches(step)
        assert first.trainer.is_at(second.replica)
    assert link.damaged == 6 and second.service._fetching.blocks_again == 6
    assert second.says(COPY_BLOCK)
    link.close()


def test_a_copy_with_other_settings_says_so_and_makes_no_step(
    source: Made, copy: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = source()
    first.step(2)
    second = copy(first.url, optimizer={"name": "adamw", "learning_rate": 2e-2})
    second.reaches(2)
    first.step()
    second.until(lambda: second.says(COPY_DIFFERS))
    assert second.step == 2, "equal, and the last that is"
    monkeypatch.setattr(copy_stage, "LOOK_S", 0.05)
    first.step(4)
    second.until(lambda: second.service._fetching.link.newest == 7)
    second.service._record()
    record = read_copy(second.run)
    assert record is not None and record.differs and record.why_not.is_any_of(COPY_DIFFERS)
    assert record.lag_steps == 5, "the chain goes on"
    assert read_record(second.run).update.state is ReplicaState.STOPPED


def flip_a_bit(replica: Replica) -> None:
    """Of a live parameter, as faulty memory does."""
    live = replica.sections()[PARAMETERS].tobytes()
    memory = np.memmap(replica.path, np.uint8, "r+")
    for at in re.finditer(re.escape(live), memory.tobytes()):  # its first state lies there twice
        memory[at.start() + 5] ^= 4


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_whose_memory_is_damaged_takes_a_whole_state(
    source: Made, copy: Made, killed: bool
) -> None:
    first = source()
    first.step(2)
    second = copy(first.url)
    second.reaches(2)
    flip_a_bit(second.replica)
    with refused_as(DIGEST_DIFFERS, kind=StateError):
        newest_step(second.run, settle=False)
    if killed:
        second.again()
    for step in range(3, 6):
        first.step()
        second.reaches(step)
        assert first.trainer.is_at(second.replica)
    assert second.says(COPY_DAMAGED) and not second.says(COPY_DIFFERS)
    assert read_record(second.run).update.state is ReplicaState.APPLYING


def test_a_chain_without_a_state_is_told_from_one_that_does_not_answer(
    source: Made, copy: Made
) -> None:
    first = source()
    aside = first.run.replica.rename(first.run.replica.with_name("aside"))
    second = copy(first.url)
    second.until(lambda: second.says(COPY_AWAITED))
    second.service._record()
    record = read_copy(second.run)
    assert record is not None and record.answers and not second.says(COPY_NO_SOURCE)
    aside.rename(first.run.replica)
    second.reaches(0)


def test_a_cut_link_is_told_and_what_was_missed_comes_behind_it(source: Made, copy: Made) -> None:
    first = source()
    link = BadLink(first.url)
    second = copy(link.url)
    second.reaches(0)
    first.step()
    second.reaches(1)
    link.cut(True)
    first.step(4)
    second.until(lambda: second.says(COPY_SOURCE_GONE))
    second.again()  # while nobody answers: it has its step, and what it knew
    assert second.step == 1
    second.service._record()
    record = read_copy(second.run)
    assert record is not None and not record.answers and record.newest == 1
    found = newest_step(second.run, settle=False)
    assert found.snapshot.step == 1 and found.snapshot.digest == second.replica.digest
    link.cut(False)
    second.reaches(5)
    assert first.trainer.is_at(second.replica) and second.lines() == [1, 2, 3, 4, 5]
    link.close()


def test_a_paused_source_that_comes_back_is_refused_behind_its_successor(
    source: Made, copy: Made
) -> None:
    """Two chains on the same job: the first one stands still, the second one is followed, and the
    job goes back to an earlier step there. Nothing of the first one's past is ever taken again."""
    first, later = source(epoch=1), source("second", epoch=2)
    link = BadLink(first.url)
    second = copy(link.url, later.url)
    for one in (first, later):
        one.step(2)
    second.reaches(2)
    link.stands_still(True)
    first.step()
    later.step(2)
    second.reaches(4)
    assert later.trainer.is_at(second.replica)
    first.step(5)  # of a past of its own by now
    link.stands_still(False)
    later.service.stop()
    second.until(lambda: second.says(COPY_EPOCH))
    assert second.step == 4 and later.trainer.is_at(second.replica)
    second.again()  # what it knows outlives it
    began = len(second.told())
    second.until(lambda: any(one.is_any_of(COPY_EPOCH) for one in second.told()[began:]))
    assert second.step == 4
    first.service._record()
    told = read_copies(first.run)
    assert told is not None and told.why_not is not None and told.why_not.is_any_of(COPY_SUPERSEDED)
    link.close()


def test_two_chains_of_one_epoch_are_not_mixed(source: Made, copy: Made) -> None:
    first, other = source(), source("second", seed=4)
    second = copy(first.url, other.url)
    first.step(2)
    second.reaches(2)
    first.service.stop()
    other.step(5)
    second.until(lambda: second.says(COPY_EPOCH_TWICE))
    assert second.step == 2 and first.trainer.is_at(second.replica)


@pytest.mark.parametrize("keep_bytes", [1 << 20, 0])
def test_a_source_that_went_back_takes_the_copy_with_it(
    source: Made, copy: Made, keep_bytes: int
) -> None:
    first, again = source(), Trainer()
    second = copy(first.url, keep_bytes=keep_bytes)
    second.reaches(0)
    first.step(4)
    second.reaches(4)
    again.step(1)
    again.step(2)
    first.replica.go_back(Step(2))
    first.kept.enter(2)  # the job's next incarnation
    first.trainer = again
    second.until(lambda: second.step == 2)
    assert again.is_at(second.replica)
    first.step(3, seed=70)
    second.reaches(5)
    assert again.is_at(second.replica)
    assert second.says(COPY_WENT_BACK) == bool(keep_bytes)
    assert second.lines() == sorted(set(second.lines())), "no step of the past that is over"


def test_a_chain_that_began_anew_does_not_cost_the_copy_its_newest_step(
    source: Made, copy: Made
) -> None:
    first, later = source(epoch=1), source("second", epoch=2, seed=4)
    second = copy(first.url, later.url)
    first.step(3)
    second.reaches(3)
    first.service.stop()
    second.until(lambda: second.says(COPY_AHEAD))
    assert second.step == 3 and first.trainer.is_at(second.replica)
    later.step(4)
    second.reaches(4)
    assert later.trainer.is_at(second.replica)


def test_taint_and_healing_reach_the_copy(source: Made, copy: Made, shm: Path) -> None:
    first = source()
    whole = Source(shm / "whole-run", shm / "whole")
    second = copy(first.url)
    first.step()
    second.reaches(1)
    first.step(lacks=np.array([[5, 9]]))
    second.reaches(2)
    assert np.array_equal(second.replica.tainted_ranges, [[5, 9]])
    late = copy(first.url, name="late")
    late.until(lambda: late.says(COPY_TAINTED))
    assert late.replica is None, "a state with tainted elements is none to begin with"
    whole.step(2)
    patch = patch_of_sections(
        whole.replica.description, whole.replica.sections(), first.replica.tainted_ranges
    )
    first.replica.heal(Step(2), patch)
    first.service.on_message(None)
    second.until(lambda: not len(second.replica.tainted_ranges))
    late.reaches(2)
    first.step()
    for one in (second, late):
        one.reaches(3)
        assert first.trainer.is_at(one.replica)
    whole.close()


@given(raw=st.binary(max_size=300), valid=st.booleans())
def test_whatever_an_answer_is_it_is_read_or_refused(raw: bytes, valid: bool) -> None:
    prefix = PREFIX.pack(len(raw), xxhash.xxh3_128_digest(raw) if valid else bytes(16))
    with suppress(StateError):
        decode_head(prefix, raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (-1,)},
        {"parts": (1 << 60,)},
        {"parts": ()},
        {"source": "zz"},
        {"newest": (-4, "0" * 32)},
        {"newest": (4, "0")},
        {"epoch": Epoch(-1, 0, 0)},
        {"kind": AnswerKind.STATE},
        {"sequence": -1},
        {"first": -1},
    ],
    ids=str,
)
def test_an_answer_that_states_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    state = (Step(4), "0" * 32)
    line = JournalLine(before=state, behind=(Step(5), "1" * 32))
    own: dict[str, Any] = {"kind": AnswerKind.CHANGE, "epoch": Epoch(), "source": "a" * 32}
    own["place"] = "b" * 32
    own |= {"newest": state, "line": line, "parts": (8,), "sequence": 1}

    def read(answer: CopyAnswer) -> CopyAnswer:
        raw = encode_head(answer)
        return decode_head(raw[: PREFIX.size], raw[PREFIX.size :])

    assert read(CopyAnswer(**own)).parts == (8,)
    with refused_as(COPY_ANSWER):
        read(CopyAnswer(**own | changes))


def test_who_has_no_token_or_trusts_another_authority_gets_nothing(
    source: Made, copy: Made, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    own = {"tls_certificate": str(tmp_path / "own.pem"), "tls_key": str(tmp_path / "own.key")}
    authority.sign(Path(own["tls_certificate"]), Path(own["tls_key"]))
    for name in ("token", "wrong"):
        (tmp_path / name).write_text(f"the {name} of this test, long enough")
    right = {"token_file": str(tmp_path / "token"), "ca": str(authority.file)}
    first = source(token_file=right["token_file"], **own)
    first.step(2)
    assert first.url.startswith("https://")
    wrong = {"token_file": str(tmp_path / "wrong")}, {"ca": str(other.file)}
    for number, changed in enumerate(wrong):
        stranger = copy(first.url, name=f"stranger-{number}", **right | changed)
        stranger.until(lambda one=stranger: one.says(COPY_NO_SOURCE))
        assert stranger.replica is None and not stranger.service._fetching.received_bytes
    second = copy(first.url, **right)
    second.reaches(2)
    first.step(2)
    second.reaches(4)
    assert first.trainer.is_at(second.replica)
