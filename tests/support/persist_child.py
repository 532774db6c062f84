"""Processes that save and save until they are killed, forked from one that has loaded torch.

Run as a script: TARGET STATE STAGING SETTINGS (JSON). Each line on its input forks a saver, whose
process number it prints; the one before is waited for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.persisting import saver_for

from flowcheck.config import PersistConfig
from flowcheck.errors import FlowCheckError
from flowcheck.replica.torch_without_compiler import load_torch


def save_for_ever(config: PersistConfig, state: Path, staging: Path) -> None:
    import torch

    torch.set_num_threads(1)
    saver = saver_for(config, staging, state)
    while True:
        try:
            saver.save(0)
        except FlowCheckError as error:
            print(error, file=sys.stderr, flush=True)


def main() -> None:
    state, staging = Path(sys.argv[1]), Path(sys.argv[2])
    config = PersistConfig(**json.loads(sys.argv[3]))
    load_torch()
    if not config.is_local:
        import s3fs  # noqa: F401
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            save_for_ever(config, state, staging)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
