"""Stage: while elements of the replica are tainted, asks the hook in the trainer for them.

A thread asks, as the answer takes a step of the trainer. The hook's values are of the end of a
step; which one, the exact elements among them show: the updater takes values only where those are
equal to its own at that step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from flowcheck.config import HookConfig, JobConfig
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.replica_state_errors import PATCH_REFUTED, PATCH_STEP_GONE
from flowcheck.findings.catalog.trainer_hook import (
    HOOK_OTHER_JOB,
    HOOK_STEP_UNKNOWN,
    HOOK_TOKEN,
)
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.hook.install import hook_token, parse_address
from flowcheck.hook.protocol import ELEMENTS_MAX, Answer, Request
from flowcheck.messages import Message, Note
from flowcheck.replica.element_ranges import Ranges, count_elements, no_ranges
from flowcheck.replica.state_file.file_header import peek_commit, peek_description
from flowcheck.replica.taint import elements_of_losses, read_losses
from flowcheck.stages.healing.asked_elements import (
    asked_elements,
    asked_parameters,
    patch_of_answer,
)
from flowcheck.stages.healing.hook_client import ask_hook
from flowcheck.stages.job_state.given_checkpoint_request import await_answer, submit_patch
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.step_numbers import Step

LOOK_S = 0.2
"""Seconds between two looks for taint. A choice: longer leaves elements tainted for longer."""
TAKEN_LIMIT_S = 30.0
"""Seconds for the updater to reach the step and take its values. A choice: longer than it ever
lags, else values are asked anew."""


def tainted_now(replica: Path) -> Ranges:
    """The tainted elements of the replica's step; empty where there is no replica, or it is exact.
    Raises FlowCheckError."""
    if not replica.exists():
        return no_ranges()
    commit, _ = peek_commit(replica)
    return elements_of_losses(read_losses(replica), commit.step) if commit.tainted else no_ranges()


class HookService:
    """Asks in a thread beside the stage's loop."""

    name = "hook"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.hook is not None, "the stage is started where it is stated"
        self._run, self._own = run, config.hook
        self._thread: threading.Thread | None = None
        self._looked_s = 0.0
        self._next_s = 0.0
        self._addresses = list(self._own.addresses)
        """The one that healed last first: of several jobs each has a hook of its own."""
        self._said: Finding | None = None
        self._told: Finding | None = None
        """Why the last request healed nothing; None: it did."""

    def start(self, links: StageSockets) -> None:
        self._links = links

    def work(self) -> int:
        now = time.monotonic()
        if self._thread is not None:
            if self._thread.is_alive():
                return 0
            self._thread = None
            self._next_s = now + self._own.pause_s
            if self._told is not None and self._told != self._said:
                self._links.report(Note(stage=self.name, finding=self._told))
            self._said = self._told
            return 1
        if now - self._looked_s < LOOK_S or now < self._next_s:
            return 0
        self._looked_s = now
        try:
            tainted = tainted_now(self._run.replica)
        except (FlowCheckError, OSError):
            return 0  # it is being made, or the updater tells what is wrong with it
        if len(tainted):
            self._thread = threading.Thread(target=self._ask, args=(tainted,), daemon=True)
            self._thread.start()
        return 0

    def _ask(self, tainted: Ranges) -> None:
        """Runs in a thread of its own: whatever it raises is the reason why nothing is healed."""
        for address in tuple(self._addresses):
            try:
                self._told = heal_by_hook(self._run, self._own, address, tainted)
            except FlowCheckError as error:
                self._told = error.finding
            except Exception as error:
                kind = type(error).__name__
                self._told = ERROR_TEXT(text=plain_error_text(error), kind=kind)
            if self._told is None:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                return

    def on_message(self, message: Message) -> None:
        """Nothing is waited for."""

    def drained(self) -> bool:
        return True

    def stop(self) -> None:
        """The thread ends with the process."""


def heal_by_hook(run: RunDir, own: HookConfig, address: str, tainted: Ranges) -> Finding | None:
    """Asks the hook at one of its addresses once. Returns why nothing is healed; None: something
    is. Raises StateError where the hook does not tell, or is of another job."""
    description = peek_description(run.replica)
    several = len(own.addresses) > 1
    elements = asked_elements(_most(tainted), description.layout, several_jobs=several)
    asked = asked_parameters(elements, description.layout)
    host, port = parse_address(address)
    told = ask_hook(host, port, _token(own), Request(asked, own.wait_s))
    patch = patch_of_answer(description, elements, told.answer)
    source = f"hook at {address}"
    why: Finding | None = None
    refuted = True
    at = peek_commit(run.replica)[0].step
    steps = steps_by_distance(incarnation_of(run).step, told.answer, at)
    for step in steps:
        request = submit_patch(run, step, patch, source, asked_bytes=told.bytes)
        try:
            answer = await_answer(run, request, TAKEN_LIMIT_S, source)
        except StateError as error:
            why = error.finding  # withdrawn: the replica did not come to this step
            refuted = False
            continue
        if answer.refused is None:
            return None
        why = answer.refused
        if not why.is_any_of(PATCH_REFUTED, PATCH_STEP_GONE):
            return why  # they are of this step, and heal nothing for another reason
        refuted &= why.is_any_of(PATCH_REFUTED)
    if refuted:
        return HOOK_OTHER_JOB(address=address, steps=steps)
    return HOOK_STEP_UNKNOWN(steps=steps, reason=why)


def _most(tainted: Ranges) -> Ranges:
    """As many of them as one request takes, from the first on."""
    ends = (tainted[:, 1] - tainted[:, 0]).cumsum()
    kept = tainted[ends <= ELEMENTS_MAX // 2]
    if len(kept) or not count_elements(tainted):
        return kept
    first = int(tainted[0, 0])
    return tainted[:1].clip(max=first + ELEMENTS_MAX // 2)


def steps_by_distance(began: Step | None, answer: Answer, at: Step) -> tuple[Step, ...]:
    """Steps of the replica that the answer may be of, the one nearest to the replica's own first:
    that is hardly behind the trainer, and for one that it does not come to it would wait in vain.

    began: the step that the trainer's life began with, by what is known of it, which is no step of
    the trainer's launch where the job was joined late; at: the replica's step.
    """
    found = dict.fromkeys(_candidates(began, answer))
    return tuple(sorted(found, key=lambda step: abs(step - at)))


def _candidates(began: Step | None, answer: Answer) -> Iterator[Step]:
    """The trainer's steps since it was launched, behind the step that its life began with or from
    its start, and what the optimizer itself counts."""
    if began is not None:
        yield Step(began + answer.steps)
    for one in answer.parameters:
        if one.own_step is not None:
            yield Step(one.own_step)
    yield Step(answer.steps)


def _token(own: HookConfig) -> bytes:
    try:
        return hook_token(own.token_file)
    except (OSError, ValueError) as error:
        raise StateError(HOOK_TOKEN(file=own.token_file, error=error)) from error
