"""Steps of a replica against the account that a recording holds of its trainers' own."""

from __future__ import annotations

from typing import Any

from flowcheck.findings.catalog.step_arithmetic import SQUARE_ROOTS
from flowcheck.replica.optimizer_step.c_kernel_args import square_root_name


def assert_trainers_bits(told: dict[str, Any], truth: dict[str, Any]) -> set[int]:
    """Every step that `flowcheck replay --digests --json` took has the trainers' bits; which.

    A square root is the one operation of a step that CPUs round differently: where the
    recording's had others than this one, its parameters are others, and the replay must say that
    it assumes them alike. Optimizer states take no roots and are judged everywhere.
    """
    known = {each["step"]: each["sha256"] for each in truth["steps"]}
    rooted = any(one["code"] == SQUARE_ROOTS.code for one in told["assumed"])
    parameters = truth["roots"] == square_root_name() or not rooted
    for line in told["digests"]:
        own = line["states_sha256"] | {"parameters": line["parameters_sha256"]}
        expected = dict(known[line["step"]])
        if not parameters:
            del own["parameters"], expected["parameters"]
        assert own == expected, f"step {line['step']}"
    return {line["step"] for line in told["digests"]}
