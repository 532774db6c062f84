"""A picture at a path that the user named."""

from __future__ import annotations

from pathlib import Path

from flowcheck.errors import ConfigError, naming
from flowcheck.stages.privilege.picture import is_picture


def write_picture(path: Path, svg: str) -> None:
    """Raises ConfigError where another thing than a picture lies there: a capture named by
    mistake is not written over."""
    with naming(path):
        if path.is_file() and not is_picture(path):
            right = "is a file that is no picture of ours: name another"
            raise ConfigError("--svg", str(path), right)
        path.write_text(svg)  # in place: it may be /dev/stdout
