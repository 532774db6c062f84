"""`python -m flowcheck.hook` shows of a script what python itself shows of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import sys
sys.path.insert(0, "/")
def fails(depth):
    if depth:
        fails(depth - 1)
    raise LookupError("of the script")
if __name__ == "__main__":
    print(__file__, sys.argv, flush=True)
    kind = sys.argv[1]
    class Settings:
        rate: float
    print(Settings.__annotations__, flush=True)
    if kind == "raise":
        fails(1)
    if kind == "chained":
        try:
            fails(0)
        except LookupError as error:
            raise RuntimeError("behind it") from error
    if kind == "exit":
        sys.exit(int(sys.argv[2]))
    if kind == "text":
        sys.exit("a last word")
"""


@pytest.mark.parametrize(
    "words",
    [
        ["job.py", "raise"],
        ["job.py", "chained"],
        ["job.py", "exit", "7"],
        ["job.py", "text"],
        ["job.py", "ends"],
        ["./job.py", "raise"],
        ["torn.py"],
        ["none.py"],
        ["-m", "job", "raise"],
        ["-m", "none"],
        ["-m", "none.at_all"],
    ],
    ids=" ".join,
)
def test_a_script_ends_as_under_python(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "torn.py").write_text("x = (1,\n")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}

    def run(*launcher: str) -> tuple[int, str, list[str]]:
        done = subprocess.run(
            [sys.executable, *launcher, *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if not line.startswith("flowcheck hook:")]
        # Of a module python's own frames come first, and theirs are as many here.
        return done.returncode, done.stdout, [line for line in said if "runpy" not in line]

    if "none.at_all" in words:
        plain, hooked = run(), run("-m", "flowcheck.hook")
        assert plain[0] == hooked[0] and "none" in hooked[2][-1]
    else:
        assert run("-m", "flowcheck.hook") == run()


def test_a_missing_script_is_the_only_word_that_is_missed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowcheck.hook"],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith("required: SCRIPT")
