"""Which of several jobs a checkpoint is the base of: the one that bytes prove, and no other way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.ops.trainer_checkpoint.base_command import NO_POSITION, LogPosition
from flowcheck.stages.run_directory.run_dir import RunDir

FILE = Path("step-4.pt")


@pytest.mark.parametrize(
    ("fits", "told"),
    [
        ([2], ""),
        ([], "job 1: no place in the log leads to it; job 2: no place in the log leads to it"),
        ([1, 2], "it is the base of several of them"),
    ],
)
def test_only_one_job_may_be_proved_to_be_it(
    fits: list[int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunDir(tmp_path)
    runs = [first, first.job_run_dir(2)]

    def proved(where: RunDir, file: Path, place: LogPosition) -> SimpleNamespace:
        if where in [runs[number - 1] for number in fits]:
            return SimpleNamespace(of=where)
        raise StateError("no place in the log leads to it")

    monkeypatch.setattr(verb, "_of_one", proved)
    if not told:
        own, found = verb._of(runs, FILE, LogPosition(later_checkpoint=Path("step-6.pt")))
        assert own is runs[1] and found.of is own  # type: ignore[attr-defined]
        return
    with pytest.raises(StateError) as caught:
        verb._of(runs, FILE, NO_POSITION)
    assert told in str(caught.value)


def test_a_place_that_is_only_stated_tells_no_job(tmp_path: Path) -> None:
    runs = [RunDir(tmp_path), RunDir(tmp_path).job_run_dir(2)]
    with pytest.raises(ConfigError, match=r"later checkpoint .*name the job: --run .*jobs/N"):
        verb._of(runs, FILE, LogPosition(after=3))
