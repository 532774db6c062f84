"""What a failed system call says of a file: which kind of path is expected, and what to do.

The errors come from the kernel itself, as a command would meet them."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowcheck.findings.catalog.refused_commands import (
    FILE_ERROR,
    FILE_EXPECTED,
    FILE_FAILED,
    FOLDER_EXPECTED,
    FOLDER_MISSING,
    NAME_TAKEN,
    NO_SUCH_FILE,
    NOT_PERMITTED,
    NOTHING_MADE_THERE,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.stages.file_error import file_error_finding


def reason(fails: Callable[[], object]) -> Finding:
    with pytest.raises(OSError) as caught:
        fails()
    found = file_error_finding(caught.value)
    assert found.is_any_of(FILE_ERROR) and found.cause and found.remedy
    why = found.arguments["why"]
    assert isinstance(why, Finding)
    assert found.remedy == why.remedy
    return why


@pytest.mark.parametrize(
    ("fails", "entry", "names"),
    [
        (lambda at: (at / "folder").read_bytes(), FILE_EXPECTED, "folder"),
        (lambda at: (at / "file").rename(at / "folder"), FILE_EXPECTED, "folder"),
        (lambda at: (at / "file" / "x" / "y").read_bytes(), FOLDER_EXPECTED, "file"),
        (lambda at: list((at / "file").iterdir()), FOLDER_EXPECTED, "file"),
        (lambda at: (at / "file").mkdir(), FOLDER_EXPECTED, "file"),
        (lambda at: (at / "folder").mkdir(), NAME_TAKEN, "folder"),
        (lambda at: (at / "no" / "x.svg").write_bytes(b""), FOLDER_MISSING, "no"),
        (lambda at: (at / "none").read_bytes(), NO_SUCH_FILE, "none"),
    ],
)
def test_the_remedy_says_which_kind_of_path_is_expected(
    fails: Callable[[Path], object], entry: Entry, names: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    why = reason(lambda: fails(tmp_path))
    assert why.is_any_of(entry) and str(tmp_path / names) in str(why)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EFBIG])
def test_the_command_for_the_file_system_runs_where_the_output_does_not_exist_yet(
    number: int, tmp_path: Path
) -> None:
    output = tmp_path / "none" / "out.pt"
    found = file_error_finding(OSError(number, os.strerror(number), str(output)))
    [command] = re.findall("`(findmnt [^`]*)`", found.remedy)
    shown = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and shown.stdout


@pytest.mark.parametrize(
    "fails",
    [lambda: Path("/proc/flowcheck-out").mkdir(), lambda: Path("/proc/x.svg").write_bytes(b"")],
)
def test_where_nobody_creates_files_no_missing_file_is_told(fails: Callable[[], object]) -> None:
    why = reason(fails)
    assert why.is_any_of(NOTHING_MADE_THERE) and why.arguments["folder"] == "/proc"
    assert "Correct the path" not in why.remedy


def test_an_error_without_a_rule_of_its_own_has_a_remedy_too() -> None:
    found = file_error_finding(OSError(errno.EIO, "Input/output error", "/dev/none"))
    assert found.arguments["why"] == FILE_FAILED("/dev/none") and "dmesg" in found.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_path_that_the_user_may_not_look_at_is_told_without_another_error(
    tmp_path: Path,
) -> None:
    """Of the folder that is closed, of what lies in it, and on a full disk as well."""
    (tmp_path / "closed").mkdir(mode=0o700)
    script = f"""
import errno, os
from flowcheck.stages.file_error import file_error_finding
path = {str(tmp_path / "closed" / "learned" / "job.json")!r}
os.setgroups([]); os.setgid(61000); os.setuid(61000)
for number in (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC):
    print(file_error_finding(OSError(number, os.strerror(number), path)).remedy)
print(file_error_finding(OSError(errno.EACCES, "closed", path)).arguments["why"].code)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *remedies, code = done.stdout.splitlines()
    assert all(remedies) and "user 61000" in remedies[0] and code == NOT_PERMITTED.code
