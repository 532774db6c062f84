"""`python -m flowcheck.hook train.py ...`: runs a training script with the hook."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

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
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    own = parser.parse_args()
    os.environ[ADDRESS] = own.listen
    if own.token_file:
        os.environ[TOKEN_FILE] = own.token_file
    install_from_environment()
    sys.argv = [own.script, *own.arguments]
    if own.module:
        runpy.run_module(own.script, run_name="__main__", alter_sys=True)
    else:
        # As `python SCRIPT` has it: the script's folder, in place of this one.
        sys.path[0] = str(Path(own.script).resolve().parent)
        runpy.run_path(own.script, run_name="__main__")


if __name__ == "__main__":
    main()
