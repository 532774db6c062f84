"""Calls the user's optimizer factory once in a process of its own before anything starts. Also
run as a program.

A training script may train when it is imported, wait for other ranks, or ask for a GPU: none of
that may happen in a chain that captures. Run as a program it reads a Request and writes a Refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import ENDED_THE_TRIAL, EXIT_STATUS, NOT_RETURNED
from flowcheck.findings.finding import Finding
from flowcheck.replica.param_layout import Layout

LIMIT_S = 300.0
"""Seconds for the user's file to be imported and its model made. A choice: longer delays the error
of code that hangs, shorter fails for large models."""
KEY = "optimizer.factory"


class FactoryRequest(msgspec.Struct, frozen=True):
    """What is to be tried; without a layout the file is imported only."""

    config: OptimizerConfig
    layout: Layout | None


class FactoryRefusal(msgspec.Struct, frozen=True):
    """What a ConfigError says; without `right` the settings are right."""

    key: str = ""
    value: str | None = ""
    right: Finding | None = None


def try_factory(config: OptimizerConfig, layout: Layout | None) -> None:
    """Raises ConfigError for what does not work out there, or takes too long."""
    request = msgspec.json.encode(FactoryRequest(config, layout))
    own = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=LIMIT_S, env=own, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(KEY, config.factory, NOT_RETURNED(LIMIT_S)) from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        told = last[0] if last else EXIT_STATUS(done.returncode)
        raise ConfigError(KEY, config.factory, ENDED_THE_TRIAL(told))
    refusal = msgspec.json.decode(done.stdout.splitlines()[-1], type=FactoryRefusal)
    if refusal.right is not None:
        raise ConfigError(refusal.key, refusal.value, refusal.right)


def _tried(request: FactoryRequest) -> FactoryRefusal:
    from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
    from flowcheck.replica.user_code import load_callable

    try:
        assert request.config.factory is not None
        load_callable(KEY, request.config.factory)
        if request.layout is not None:
            check_optimizer(request.config, request.layout)
    except ConfigError as error:
        value = None if error.value is None else str(error.value)
        return FactoryRefusal(error.key, value, error.right)
    return FactoryRefusal()


if __name__ == "__main__":
    refusal = _tried(msgspec.json.decode(sys.stdin.buffer.read(), type=FactoryRequest))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(refusal) + b"\n")
