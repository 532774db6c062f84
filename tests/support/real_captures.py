"""Where real captures of NCCL traffic lie, with their truth."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def captures_folder() -> Path | None:
    """The folder with captures/ and truth/: FLOWCHECK_CAPTURES, else beside the checkout."""
    named = os.environ.get("FLOWCHECK_CAPTURES")
    folder = Path(named) if named else REPOSITORY.parent / "shared"
    if folder.name == "captures":
        folder = folder.parent
    return folder if (folder / "captures").is_dir() else None
