"""The C core built with address and undefined-behaviour sanitizers, and tests run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")

BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
import build_ffi
from pathlib import Path
ffi = build_ffi.core_builder(tuple(sys.argv[3:]))
build_ffi.compile_into(ffi, Path(sys.argv[2]))
"""


def runtimes() -> list[Path]:
    """gcc's sanitizer libraries, to be loaded before Python; empty where one is missing."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
        path = Path(done.stdout.strip())
        if done.returncode or not path.is_absolute():
            return []
        found.append(path.resolve())
    return found


def build(folder: Path) -> Path:
    """A copy of the package in `folder`, its core sanitized; what PYTHONPATH needs."""
    package = folder / "flowcheck"
    shutil.copytree(
        REPOSITORY / "flowcheck", package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    command = [sys.executable, "-c", BUILD, str(REPOSITORY / "dpdk_ext"), str(package), *FLAGS]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def pytest_on(where: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs tests, given relative to the repository, on the package in `where`."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(where), str(REPOSITORY / "tests")]),
        "LD_PRELOAD": ":".join(map(str, runtimes())),
        # Python keeps what it allocates; a leak is not what is looked for here.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONSAFEPATH": "1",
    }
    check = "import flowcheck, sys; sys.exit(not flowcheck.__file__.startswith(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", check, str(where)], env=environment, check=True, timeout=60
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
