"""`flowcheck fleet plan`: makes the plan and writes it."""

from __future__ import annotations

import json
import sys

from flowcheck.ops.fleet.fleet_plan_report import as_dict, print_fleet_plan
from flowcheck.ops.fleet.planned_fleet import FleetRequest, make_fleet_plan


def run(asked: FleetRequest, *, as_json: bool) -> int:
    """Prints the plan and returns the exit code. Raises ConfigError where there is none."""
    plan = make_fleet_plan(asked)
    if as_json:
        json.dump(as_dict(plan), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_fleet_plan(plan)
    return 0
