"""`flowcheck fleet plan` and `figures`: make plan and pictures, and write them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from flowcheck.ops.console_output import print_line
from flowcheck.ops.fleet.fleet_plan_report import as_dict, print_fleet_plan
from flowcheck.ops.fleet.line_chart import svg_of_charts
from flowcheck.ops.fleet.planned_fleet import FleetRequest, make_fleet_plan
from flowcheck.ops.svg_drawing import write_picture


def run(asked: FleetRequest, *, svg: Path | None, as_json: bool) -> int:
    """Prints the plan, draws it where a file is named, and returns the exit code. Raises
    ConfigError where there is no plan."""
    plan = make_fleet_plan(asked)
    if svg is not None:
        from flowcheck.ops.fleet.fleet_charts import plan_chart

        write_picture(svg, svg_of_charts([plan_chart(plan)]))
    if as_json:
        json.dump(as_dict(plan), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_fleet_plan(plan)
    return 0


def draw_figures(svg: Path, *, as_json: bool) -> int:
    """Draws Gemini's figures; JSON has the points. Raises ConfigError where the file is no
    picture."""
    from flowcheck.ops.fleet.fleet_charts import gemini_charts

    charts = gemini_charts()
    write_picture(svg, svg_of_charts(charts))
    if as_json:
        json.dump({"charts": msgspec.to_builtins(charts)}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_line(f"{svg}: Gemini's figures 9, 11 and 14")
    return 0
