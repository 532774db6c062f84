"""What the judge of errors holds for equal, and what it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.refused_as import Wanted, like, refused_as, says

from flowcheck.errors import ConfigError, LearnError, StateError
from flowcheck.findings.catalog import refused_restores as findings
from flowcheck.findings.catalog.checkpoint_damage import MANIFEST_CHANGED
from flowcheck.findings.catalog.general_errors import SETTING_REFUSED
from flowcheck.findings.catalog.refused_settings import AT_LEAST, ONE_OF

SETTING = ConfigError("replica.copies", 0, AT_LEAST(least=1))
WHOLE = findings.COMPLETE_IN_FOLDER(step=3, form="dcp", left="out.part", command="mv out.part out")
KILLED = StateError(findings.RESTORE_KILLED(output="/run/out", name="out", left=[WHOLE]))


@pytest.mark.parametrize(
    ("error", "wanted", "arguments"),
    [
        (SETTING, AT_LEAST, {}),
        (SETTING, AT_LEAST(least=1), {}),
        (SETTING, AT_LEAST, {"key": "replica.copies", "value": "0", "least": 1}),
        (SETTING, like(AT_LEAST, key=re.compile(r"^replica\.")), {"least": 1}),
        (SETTING, SETTING_REFUSED, {"right": AT_LEAST}),
        (SETTING, SETTING_REFUSED, {"right": like(AT_LEAST, least=1)}),
        (KILLED, findings.COMPLETE_IN_FOLDER, {"step": 3, "output": Path("/run/out")}),
        (KILLED, findings.RESTORE_KILLED, {"left": like(findings.COMPLETE_IN_FOLDER, step=3)}),
        (KILLED, findings.RESTORE_KILLED, {"left": (WHOLE,)}),
    ],
)
def test_an_error_is_known_by_a_code_in_it_and_its_arguments(
    error: StateError | ConfigError, wanted: Wanted, arguments: dict[str, object]
) -> None:
    with refused_as(MANIFEST_CHANGED, wanted, kind=type(error), **arguments) as caught:
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("wanted", "arguments"),
    [
        (ONE_OF, {}),
        (AT_LEAST(least=2), {}),
        (AT_LEAST, {"least": 2}),
        (AT_LEAST, {"least": "1"}),
        (AT_LEAST, {"most": 1}),
        (SETTING_REFUSED, {"least": 1}),
        (SETTING_REFUSED, {"right": ONE_OF}),
        (like(AT_LEAST, key="replica"), {}),
        (like(AT_LEAST, key=re.compile("^copies")), {}),
    ],
)
def test_another_code_or_argument_is_not_it(wanted: Wanted, arguments: dict[str, object]) -> None:
    with pytest.raises(AssertionError), refused_as(wanted, kind=ConfigError, **arguments):
        raise SETTING


def test_without_a_code_nothing_is_it() -> None:
    assert not says(SETTING.finding)
    assert not says(SETTING.finding, key="replica.copies")


def test_an_error_of_another_kind_or_none_is_not_it() -> None:
    with pytest.raises(ConfigError), refused_as(AT_LEAST, kind=LearnError):
        raise SETTING
    with pytest.raises(AssertionError), refused_as(AT_LEAST, kind=ValueError):
        raise ValueError("must be 1 or more")
    with pytest.raises(pytest.fail.Exception), refused_as(AT_LEAST, kind=ConfigError):
        pass
