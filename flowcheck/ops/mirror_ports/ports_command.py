"""`flowcheck ports`: chooses the ports and writes the report, the drawing and the [[mirror]]
tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest, make_mirror_plan
from flowcheck.ops.mirror_ports.ports_report import as_dict, print_mirror_plan


def run(asked: PortsRequest, *, as_json: bool, svg: Path | None, mirrors: str | None) -> int:
    """Prints the chosen ports and writes the requested files; returns the exit code.

    svg: file for the drawing; None: none.
    mirrors: file name for the [[mirror]] tables; None: none.

    Raises ConfigError with the reason where no choice of ports works.
    """
    chosen = make_mirror_plan(asked)
    if svg is not None:
        from flowcheck.ops.mirror_ports.ports_svg import svg_of
        from flowcheck.ops.svg_drawing import write_picture

        write_picture(svg, svg_of(chosen))
    if mirrors is not None:
        from flowcheck.ops.mirror_ports.job_file_mirror_tables import write_mirrors

        write_mirrors(mirrors, chosen)
    if as_json:
        json.dump(as_dict(chosen), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_mirror_plan(chosen)
    return 0
