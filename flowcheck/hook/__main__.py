"""`python -m flowcheck.hook train.py ...`: runs a training script with the hook."""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType

from flowcheck.hook.install import ADDRESS, TOKEN_FILE, install_from_environment

HELP = """\
Runs a training script unchanged, and answers FlowCheck what single elements of the model and of the
optimizer's state are at the end of a step. FlowCheck asks where packets were lost.

The same without a change of the launch: FLOWCHECK_HOOK=HOST:PORT and FLOWCHECK_HOOK_TOKEN_FILE=FILE
in the environment of the trainer, in which FlowCheck is installed.

Example: torchrun --nproc-per-node 8 -m flowcheck.hook --token-file hook.token train.py --lr 1e-3
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m flowcheck.hook",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", default=os.environ.get(ADDRESS, "127.0.0.1:9470"), metavar="HOST:PORT",
        help="address that rank 0 listens at; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", default=os.environ.get(TOKEN_FILE), metavar="FILE",
        help="file with the token that FlowCheck has as well, 16 bytes or more",
    )  # fmt: skip
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    rest.required = False  # argparse says otherwise where SCRIPT is missing
    own = parser.parse_args()
    _check_exists(own.script, is_module=own.module)
    os.environ[ADDRESS] = own.listen
    if own.token_file:
        os.environ[TOKEN_FILE] = own.token_file
    install_from_environment()
    sys.argv = [own.script, *own.arguments]
    if own.module:
        _run(lambda: runpy.run_module(own.script, run_name="__main__", alter_sys=True))
    else:
        _run(lambda: _run_file(own.script))


def _run_file(script: str) -> None:
    """As `python SCRIPT` has it: the script's folder in place of this one, its whole path, and its
    module as the process's __main__, to its end and behind it."""
    path = os.path.join(Path.cwd(), script)  # noqa: PTH118 (keeps "./", as python does)
    if not Path(path).is_file():
        runpy.run_path(script, run_name="__main__")
        return
    sys.path[0] = str(Path(path).resolve().parent)
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _check_exists(script: str, *, is_module: bool) -> None:
    """Leaves as python does where there is no such script (code 2) or module (code 1)."""
    python = sys.executable
    if is_module:
        # Its parent packages are the script's own: what they raise is shown when it runs.
        root = script.split(".", maxsplit=1)[0]
        if not root or find_spec(root) is None:
            print(f"{python}: No module named {script}", file=sys.stderr)
            sys.exit(1)
    elif not Path(script).exists():
        place = Path(script).absolute()
        print(f"{python}: can't open file '{place}': [Errno 2] No such file or directory",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)


def _run(script: Callable[[], object]) -> None:
    """Runs it; an exception is shown as python shows it, without the frames that started it."""
    try:
        script()
    except Exception as error:
        trace = _of_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins behind this file's and runpy's frames."""
    starters = {__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in starters:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
