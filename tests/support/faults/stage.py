"""`python -m support.faults.stage stage NAME ...`: a stage, with what a schedule does to it."""

from __future__ import annotations

import os

import msgspec
from support.faults.inflicted import Plan, afflict

from flowcheck.__main__ import main

if __name__ == "__main__":
    afflict(msgspec.json.decode(os.environ["FAULT_PLAN"], type=Plan))
    main()
