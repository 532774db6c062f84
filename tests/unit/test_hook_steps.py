"""Which step of the replica the hook's answer is of, which elements tell jobs apart, and hooks of
several jobs in the job file."""

from __future__ import annotations

import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.config import HookConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import ADDRESS_AND_PORT
from flowcheck.hook.protocol import Answer, AnsweredParameter
from flowcheck.replica.element_ranges import difference
from flowcheck.replica.param_layout import FlatParameter, Layout
from flowcheck.stages.healing.asked_elements import EVIDENCE, asked_elements
from flowcheck.stages.healing.hook_stage import steps_by_distance
from flowcheck.step_numbers import Step


def told(steps: int, own_step: int | None) -> Answer:
    one = AnsweredParameter(0, "w", (1,), "float32", b"", {}, {}, own_step)
    return Answer(steps, (one,))


@pytest.mark.parametrize(
    ("began", "steps", "own_step", "at", "first"),
    [
        (0, 25, 25, 24, 25),  # followed from the start
        (10, 15, 25, 24, 25),  # launched again at step 10
        (2000, 2345, 2345, 2340, 2345),  # joined late, on a base of step 2000
        (2000, 2345, None, 2340, 2345),  # the same where the optimizer counts nothing
        (2000, 45, 45, 2044, 2045),  # launched again at step 2000, with a new optimizer
        (None, 7, 1007, 1006, 1007),
    ],
)
def test_the_step_next_to_the_replicas_is_asked_first(
    began: int | None, steps: int, own_step: int | None, at: int, first: int
) -> None:
    since = None if began is None else Step(began)
    found = steps_by_distance(since, told(steps, own_step), Step(at))
    assert found[0] == first
    assert len(set(found)) == len(found)


def test_elements_that_tell_jobs_apart_are_exact_ones_of_the_largest_parameters() -> None:
    sizes = (1000, 40, 5000, 300, 8, 2000)
    flat = (FlatParameter(f"p{n}", (s,), (1,), sum(sizes[:n])) for n, s in enumerate(sizes))
    layout = Layout("float32", tuple(flat))
    starts = np.cumsum((0, *sizes))
    tainted = np.array([[2, 5], [1040, 6040]], np.int64)  # all of the largest one
    alone = asked_elements(tainted, layout)
    several = asked_elements(tainted, layout, several_jobs=True)
    more = difference(several, alone)
    assert not len(difference(alone, several))
    assert len(difference(tainted, several)) == 0
    owners = {int(np.searchsorted(starts, first, "right")) - 1 for first, _ in more.tolist()}
    assert owners == {0, 3, 5}
    assert int((more[:, 1] - more[:, 0]).sum()) == 3 * EVIDENCE


def test_hooks_of_several_jobs() -> None:
    one, two = "10.0.0.7:9470", "10.0.0.9:9470"
    assert HookConfig(address=one, token_file="t").addresses == (one,)
    assert HookConfig(address=(one, two), token_file="t").addresses == (one, two)
    for wrong in ((one, "10.0.0.9"), ()):
        with refused_as(ADDRESS_AND_PORT, kind=ConfigError):
            HookConfig(address=wrong, token_file="t")
