"""`analyze` tells people what to do under each finding, as it tells programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_cli import flowcheck


def remedies(told: Any) -> list[str]:
    """Of the findings of a list, each once."""
    return list(dict.fromkeys(one["remedy"] for one in told if "remedy" in one))


@pytest.mark.parametrize("name", ["allreduce_addstep", "iter_40000_p2p"])
def test_what_to_do_stands_under_what_is_missing(captures: Path, name: str) -> None:
    file = captures / f"{name}.pcapng"
    code, out, _ = flowcheck("analyze", file, "--json")
    wanted = remedies(json.loads(out)["notes"])
    assert code == 0 and wanted
    code, out, err = flowcheck("analyze", file)
    said = " ".join((out + err).split())
    assert code == 0
    for remedy in wanted:
        assert said.count(" ".join(remedy.split())) == 1, remedy
