"""The way common to all switches, and what is refused of each by what it holds."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.refused_mirror_sessions import JOURNAL_UNWRITABLE
from flowcheck.findings.catalog.refused_sonic_sessions import (
    ASIC_CANNOT_MIRROR,
    SONIC_HOST_NEEDED,
    SONIC_MONITOR_IS_MEMBER,
    SONIC_MONITOR_IS_ROUTED,
    SONIC_MONITOR_TAKEN,
    SONIC_MONITOR_WATCHED,
    SONIC_NO_SUCH_PORT,
    SONIC_SOURCE_IS_MONITOR,
    SONIC_SOURCE_WATCHED,
)
from flowcheck.findings.catalog.switch_changes import (
    INTERRUPTED,
    LOCKED,
    NO_JSON,
    NOT_A_JOURNAL,
    PORT_NAME_BEGINS_ALIKE,
    PROGRAM_FAILED,
    PROGRAM_KILLED,
    PROGRAM_MISSING,
    PROGRAM_SAYS_TOO_MUCH,
    REMOVE_AGAIN,
    TC_UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch import mirror_session_options, switch_platforms
from flowcheck.ops.switch.apply import (
    apply_journal,
    apply_report,
    command_runner,
    reconciler,
    sonic_mirror,
    sonic_state,
    switch_backends,
    tc_state,
)
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal, apply_lock
from flowcheck.ops.switch.apply.command_runner import SshShell
from flowcheck.ops.switch.apply.reconciler import ApplyOutcome, CommandStep
from flowcheck.ops.switch.apply.sonic_mirror import SonicSwitch
from flowcheck.ops.switch.apply.tc_commands import MirrorFilter
from flowcheck.ops.switch.apply.tc_mirror import TcMirrors
from flowcheck.ops.switch.apply.tc_state import TcJournal
from tests.unit.test_cli import refused

RECORDED = Path(__file__).parents[1] / "data/switch/tc-matchall.json"


def lamp(name: str) -> Finding:
    return ERROR_TEXT(kind="lamp", text=name)


class Lamps:
    """A switch of lamps; each command lights or darkens one."""

    def __init__(self, fails: set[str], lit: set[str]) -> None:
        self.lit, self.fails = lit, fails

    def observe(self) -> frozenset[str]:
        return frozenset(self.lit)

    def own_goal(self, state: frozenset[str]) -> frozenset[str]:
        return state

    def possible_part(self, state: frozenset[str], goal: frozenset[str]) -> frozenset[str]:
        return goal

    def steps(self, state: frozenset[str], goal: frozenset[str]) -> list[CommandStep]:
        more = [CommandStep(what=lamp(one), command=("light", one)) for one in sorted(goal - state)]
        return more + [
            CommandStep(what=lamp(one), command=("darken", one)) for one in sorted(state - goal)
        ]

    def run(self, step: CommandStep, *, back: bool) -> None:
        word, lamp = step.command
        if str(step) in self.fails:
            raise StateError(f"{step} failed")
        (self.lit.add if word == "light" else self.lit.discard)(lamp)

    def confirm_mirroring(self, goal: frozenset[str]) -> None:
        if "confirm" in self.fails:
            raise StateError("it is dark all the same")

    def clean_up_notes(self, state: frozenset[str]) -> None:
        pass


@pytest.mark.parametrize(
    ("fails", "outcome", "lit"),
    [
        (set(), ApplyOutcome.CHANGED, {"b", "c"}),
        ({"light c"}, ApplyOutcome.UNDONE, {"a"}),
        ({"darken a"}, ApplyOutcome.UNDONE, {"a"}),
        ({"confirm"}, ApplyOutcome.UNDONE, {"a"}),
        ({"light c", "darken b"}, ApplyOutcome.LEFT, {"a", "b"}),
    ],
)
def test_what_fails_is_undone_and_what_is_left_is_said(
    fails: set[str], outcome: ApplyOutcome, lit: set[str]
) -> None:
    lamps, told = Lamps(fails, {"a"}), []
    result = reconciler.reconcile(lamps, lambda _: frozenset("bc"), dry_run=False, tell=told.extend)
    assert (result.outcome, lamps.lit) == (outcome, lit)
    assert [str(step) for step in told] == ["light b", "light c", "darken a"]
    assert result.left == (["darken b"] if outcome is ApplyOutcome.LEFT else [])
    assert result.advice is None, "the commands are the advice"


def test_a_switch_that_answers_no_more_is_given_advice_and_no_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Away(Lamps):
        def observe(self) -> frozenset[str]:
            if self.lit != {"a"}:
                raise StateError(NO_JSON(command="ask", error="gone"))
            return super().observe()

    lamps = Away({"light c"}, {"a"})
    result = reconciler.reconcile(lamps, lambda _: frozenset("bc"), dry_run=False, tell=list)
    assert (result.outcome, result.left) == (ApplyOutcome.LEFT, [])
    assert result.advice == REMOVE_AGAIN()
    apply_report.print_outcome(result)
    assert f"What to do: {REMOVE_AGAIN()}" in capsys.readouterr().err


def test_an_interrupt_is_a_failure_and_a_dry_run_does_nothing() -> None:
    class Interrupted(Lamps):
        def run(self, step: CommandStep, *, back: bool) -> None:
            super().run(step, back=back)
            if step.command == ("light", "b"):
                raise KeyboardInterrupt

    lamps = Interrupted(set(), set())
    result = reconciler.reconcile(
        lamps, lambda _: frozenset("bc"), dry_run=True, tell=lambda _: None
    )
    assert (result.outcome, lamps.lit) == (ApplyOutcome.WOULD_CHANGE, set())
    result = reconciler.reconcile(
        lamps, lambda _: frozenset("bc"), dry_run=False, tell=lambda _: None
    )
    assert (result.outcome, result.why, lamps.lit) == (ApplyOutcome.UNDONE, INTERRUPTED(), set())


def test_programs_are_stopped_at_their_limits() -> None:
    with refused_as(PROGRAM_KILLED):
        command_runner.run_switch_command(["sleep", "20"], limit_s=0.2)
    with refused_as(PROGRAM_SAYS_TOO_MUCH, mib=16):
        command_runner.run_switch_command(["sh", "-c", "cat /dev/zero"], limit_s=20)
    with refused_as(PROGRAM_FAILED, code=3, said="no such thing"):
        command_runner.run_switch_command(["sh", "-c", "echo no such thing >&2; exit 3"])
    with refused_as(PROGRAM_MISSING):
        command_runner.run_switch_command(["no-such-program-of-ours"])


def test_a_journal_that_cannot_be_written_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught, apply_lock(tmp_path / "file"):
        pass
    assert caught.value.right == JOURNAL_UNWRITABLE(os.strerror(errno.EEXIST))
    (tmp_path / "x.json").write_text("no json")
    with refused_as(NOT_A_JOURNAL):
        ApplyJournal(tmp_path, "x").read()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--os", "eos", "--monitor", "Ethernet2/1"), "render --os eos"),
        (("--os", "tc", "--monitor", "b", "--db", "unix:/x"), "with --os openvswitch only"),
        (("--os", "tc", "--monitor", "b", "--form", "flower"), "matchall, hardware, u32"),
        (("--os", "sonic", "--monitor", "Ethernet4"), str(SONIC_HOST_NEEDED())),
        (("--os", "sonic", "--monitor", "Ethernet4", "--host", "-oX=y"), str(SONIC_HOST_NEEDED())),
    ],
)
def test_what_cannot_be_told_directly_is_refused(words: tuple[str, ...], sentence: str) -> None:
    source = "Ethernet0" if "sonic" in words else "Ethernet1/1" if "eos" in words else "a"
    assert sentence in refused("switch", "apply", "--source", source, *words)


SOMEBODYS = {"type": "SPAN", "dst_port": "Ethernet64", "src_port": "Ethernet40", "direction": "RX"}


@pytest.mark.parametrize(
    ("sources", "monitor", "right"),
    [
        ("Ethernet40", "Ethernet124", SONIC_SOURCE_WATCHED("somebodys")),
        ("Ethernet40:both", "Ethernet124", SONIC_SOURCE_WATCHED("somebodys")),
        ("Ethernet0", "Ethernet64", SONIC_MONITOR_TAKEN("somebodys")),
        ("Ethernet64", "Ethernet124", SONIC_SOURCE_IS_MONITOR("somebodys")),
        ("Ethernet0", "Ethernet40", SONIC_MONITOR_WATCHED("somebodys")),
        ("Ethernet0:tx", "Ethernet124", ASIC_CANNOT_MIRROR("tx")),
        ("Ethernet0", "Ethernet100", SONIC_MONITOR_IS_MEMBER("Vlan7")),
        ("Ethernet0", "Ethernet104", SONIC_MONITOR_IS_ROUTED()),
        ("Ethernet3", "Ethernet124", SONIC_NO_SUCH_PORT()),
        ("Ethernet40:rx", "Ethernet124", SONIC_SOURCE_WATCHED("somebodys")),
    ],
)
def test_a_session_of_sonic_that_would_clash_is_refused(
    tmp_path: Path, sources: str, monitor: str, right: Finding
) -> None:
    state = sonic_state.SonicState(
        sessions={"somebodys": SOMEBODYS},
        ports={f"Ethernet{number}": {} for number in range(0, 128, 4)},
        bundles=frozenset(),
        members={"Ethernet100": "Vlan7"},
        routed=frozenset(["Ethernet104"]),
        status={},
        incapable=frozenset(["tx"] if ":tx" in sources else []),
    )
    sonic = SonicSwitch("flowcheck", SshShell("s", None), ApplyJournal(tmp_path, "s"), save=False)
    wanted = mirror_session_options.parse_session(
        switch_platforms.platform_named("sonic"), [sources], monitor=monitor
    )
    with pytest.raises(ConfigError) as caught:
        sonic_mirror.sonic_goal(sonic, wanted, state, lambda _: None)
    assert caught.value.right == right
    other = mirror_session_options.parse_session(
        switch_platforms.platform_named("sonic"), ["Ethernet4"], monitor="Ethernet124"
    )
    told: list[Finding] = []
    assert sonic_mirror.sonic_goal(sonic, other, state, told.append)["src_port"] == "Ethernet4"
    begins = PORT_NAME_BEGINS_ALIKE(port="Ethernet4", other="Ethernet40", session="somebodys")
    assert told == [begins]


@pytest.mark.parametrize(("os", "lock"), [("openvswitch", "ovs-lock"), ("tc", "lock")])
def test_two_at_once_wait_for_each_other_and_then_touch_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, os: str, lock: str
) -> None:
    monkeypatch.setattr(apply_journal, "LOCK_S", 0.2)
    where = switch_backends.ApplyOptions(journal=tmp_path)
    with (
        apply_journal.apply_lock(tmp_path, lock),
        refused_as(LOCKED),
    ):
        switch_backends.remove(os, "flowcheck", where, dry_run=False, tell=lambda _: None)


def test_a_number_sonic_keeps_in_another_base_is_the_one_that_was_said() -> None:
    """sonic-utilities, config/main.py: a string up to 2020, then validate_gre_type's integer."""
    said, kept = ({"type": "ERSPAN", "gre_type": one} for one in ("0x88be", "35006"))
    assert (
        sonic_state.normalized_row(said)
        == sonic_state.normalized_row(kept)
        == sonic_state.normalized_row(said | kept)
    )
    other = sonic_state.normalized_row({"type": "ERSPAN", "gre_type": "35145"})
    assert other["gre_type"] == "0x8949"


def test_matchall_is_read_and_taken_away_as_a_kernel_that_has_it_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Recorded from Linux 6.1 with iproute2 6.1, which took this very command: somebody's filters
    before and behind ours, the first of which lets frames pass on."""
    shown = json.loads(RECORDED.read_text())
    monkeypatch.setattr(tc_state, "run_json", lambda _: shown)
    there = tc_state.read_hook("va", "ingress")
    assert [one.continues() for one in there] == [True, True, False]
    assert [(one.kind, one.matches_all) for one in there] == [
        ("matchall", True),
        ("matchall", True),
        ("flower", False),
    ]
    state = tc_state.TcState(links={}, hooks={}, root={}, filters=there)
    tc = TcMirrors("flowcheck", "", TcJournal(ApplyJournal(tmp_path, "tc")))
    copy = MirrorFilter(device="va", way="ingress", monitor="vm")
    assert tc.steps(state, frozenset([copy])) == []
    (step,) = tc.steps(state, frozenset())
    command = "tc filter del dev va ingress protocol all pref 1000 handle 1 matchall"
    assert str(step) == command
    with refused_as(TC_UNREADABLE):
        tc_state.filter_of("eth1", "ingress", {"options": []})
