"""Entry point of group `torch.backends`: installs the hook when torch is imported. Without
FLOWCHECK_HOOK in the environment it returns at once and imports nothing."""

from __future__ import annotations

import os


def load() -> None:
    """As torch calls it at the end of its own import."""
    if os.environ.get("FLOWCHECK_HOOK"):
        from flowcheck.hook.install import install_from_environment

        install_from_environment()
