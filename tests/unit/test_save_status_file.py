"""The status file of saves: why one failed is a finding, also in files of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowcheck.findings.catalog.checkpoint_stores import ACCESS_DENIED
from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE
from flowcheck.vault.persist.save_status_file import SaveStatus, read_save_status, write


def test_why_a_save_failed_comes_back_as_the_finding_it_was(tmp_path: Path) -> None:
    failed = SaveStatus(target="s3://b/p", error=ACCESS_DENIED("403"), attempts=2)
    write(tmp_path / "persist.json", failed)
    assert read_save_status(tmp_path / "persist.json") == failed
    error = json.loads((tmp_path / "persist.json").read_text())["error"]
    assert error["code"] == ACCESS_DENIED.code and error["arguments"] == {"error": "403"}


@pytest.mark.parametrize("text", ["access denied (403)", ""])
def test_a_file_of_an_earlier_version_holds_text(text: str, tmp_path: Path) -> None:
    earlier = {"target": "/kept", "durable_step": 7, "error": text, "attempts": 3, "new": 1}
    (tmp_path / "persist.json").write_text(json.dumps(earlier))
    found = read_save_status(tmp_path / "persist.json")
    assert found is not None and (found.durable_step, found.attempts) == (7, 3)
    assert found.error == (EARLIER_SENTENCE(text) if text else None)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"target": 3}', '{"target": "t", "error": 3}']
)
def test_a_file_that_is_missing_or_torn_says_nothing(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "persist.json").write_text(content)
    assert read_save_status(tmp_path / "persist.json") is None
