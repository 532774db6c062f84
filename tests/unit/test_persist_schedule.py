"""When a checkpoint is due, and which may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowcheck.vault.persist.save_schedule import SaveSchedule, deletable_checkpoints


def test_every_so_many_steps_the_very_multiple_is_saved_where_it_is_still_in_memory() -> None:
    schedule = SaveSchedule(every_steps=10, every_minutes=None)
    assert schedule.due((7, 8, 9), 0, 1e9) is None
    assert schedule.due((9, 10, 11), 0, 0) == 10
    assert schedule.due((12, 13), 0, 0) == 13, "10 is gone: the newest"
    assert schedule.due((18, 19), 13, 0) is None
    assert schedule.due((28, 29, 30, 31), 13, 0) == 30
    assert schedule.due((0,), 0, 1e9) is None


def test_minutes_are_counted_from_the_begin_of_the_last_one() -> None:
    schedule = SaveSchedule(every_steps=None, every_minutes=2)
    assert schedule.due((4, 5), 3, 119) is None
    assert schedule.due((4, 5), 3, 120) == 5
    assert schedule.due((4, 5), 5, 1e9) is None, "nothing new was taken"


def test_a_replica_that_went_back_is_saved_anew() -> None:
    assert SaveSchedule(every_steps=10, every_minutes=None).due((19, 20), 500, 0) == 20
    assert SaveSchedule(every_steps=10, every_minutes=None).due((4, 5), 500, 0) is None


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_never_fewer_than_the_last_ones_stay_and_of_each_stretch_the_first(
    moved: list[int], keep_last: int, keep_every: int | None
) -> None:
    """Steps are saved one by one, each moved on from the last; what leaves is gone for good."""
    there: list[int] = []
    saved: list[int] = []
    step = 0
    for more in moved:
        step += more
        saved.append(step)
        there.append(step)
        gone = [there[index] for index in deletable_checkpoints(there, keep_last, keep_every)]
        there = [one for one in there if one not in gone]
        assert there[-min(len(saved), keep_last) :] == saved[-keep_last:]
        assert there[-1] == step, "latest stays"
        if keep_every is None:
            assert len(there) == min(len(saved), keep_last)
            continue
        stretches = {one // keep_every for one in saved if one >= keep_every}
        for stretch in stretches:
            first = min(one for one in saved if one // keep_every == stretch)
            assert first in there
        assert len(there) <= keep_last + len(stretches)
