"""Learn from what the wire shows: roles, rings, collectives, weights, the trainer's plan.

`read_stream` is pure: the same flows and messages give the same reading, and nothing is kept
between calls, so it can be called again whenever more messages are there.
"""

from __future__ import annotations

from flowcheck.wire.learn.read import read_stream
from flowcheck.wire.learn.reading import Collective, FlowReading, Part, Placement, Reading, Weights

__all__ = ["Collective", "FlowReading", "Part", "Placement", "Reading", "Weights", "read_stream"]
