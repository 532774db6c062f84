"""`flowcheck ports`: which ports of which switches to mirror."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flowcheck.ops.ports.chosen import Asked, chosen_by
from flowcheck.ops.ports.table import as_dict, printed


def run(asked: Asked, *, as_json: bool, svg: Path | None, mirrors: str | None) -> int:
    """Prints the choice. Raises ConfigError where there is none, and why."""
    chosen = chosen_by(asked)
    if svg is not None:
        from flowcheck.ops.picture_file import write_picture
        from flowcheck.ops.ports.drawing import svg_of

        write_picture(svg, svg_of(chosen))
    if mirrors is not None:
        from flowcheck.ops.ports.mirrors import write_mirrors

        write_mirrors(mirrors, chosen)
    if as_json:
        json.dump(as_dict(chosen), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        printed(chosen)
    return 0
