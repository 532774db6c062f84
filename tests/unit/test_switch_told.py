"""What is said beside the commands, and what they leave behind."""

from pathlib import Path

import pytest

from flowcheck.findings.catalog.switch_changes import (
    ADD_MIRROR,
    CHANGE_MIRROR,
    OVS_EMPTY_MIRROR,
    OVS_MIRROR,
    REMOVE_CLSACT,
)
from flowcheck.ops.switch import switch_platforms
from flowcheck.ops.switch.apply import apply_report
from flowcheck.ops.switch.apply.reconciler import ApplyOutcome, ApplyResult, CommandStep
from tests.unit.test_cli import flowcheck, refused
from tests.unit.test_switch_render import EVERY, bare, port, words


def test_a_tunnel_is_told_of_its_route_and_not_of_a_monitor_port() -> None:
    given = ("switch", "render", "--source", port("junos", 1), *words("junos", erspan=True))
    code, _, err = flowcheck(*given)
    told = " ".join(err.split())
    assert code == 0 and "monitor port" not in told
    assert f"of {20 + 16 + 18 + 64 + 4096} bytes" in told and "maximum-packet-length" in told
    code, _, err = flowcheck("switch", "render", "--source", port("junos", 1), *words("junos"))
    assert code == 0 and "monitor port's `unit 0" in " ".join(err.split())


def test_a_refusal_names_what_was_typed_or_the_key_of_the_file(tmp_path: Path) -> None:
    given = ("switch", "render", "--os", "onyx", "--source", "1/1/1", "--session", "1")
    assert "src=10.0.0.1,dst=10.0.0.2'" in refused(*given, "--erspan", "src=10.0.0.1,dst=10.0.0.2")
    given = ("switch", "render", "--os", "nxos", "--source", port("nxos", 1))
    assert "--session = '33': takes 33" in refused(
        *given, "--monitor", port("nxos", 32), "--session", "33"
    )
    (tmp_path / "l.toml").write_text(
        'nodes = 2\ngpus = 1\n[[cable]]\nnic = 0\nswitch = "a"\ngbps = 100\n'
        'ports = ["Ethernet1", "Ethernet2"]\n'
        '[[monitor]]\nswitch = "a"\ngbps = 400\nport = "Ethernet9"\nsession = 1\n'
    )
    assert "monitor[0].session = '1'" in refused("ports", tmp_path / "l.toml", "--os", "eos")


def test_no_terminal_obeys_what_a_switch_says(capsys: pytest.CaptureFixture[str]) -> None:
    step = CommandStep(what=REMOVE_CLSACT("\x1b[2J of another"), command=("tc", "\x9b2J"))
    apply_report.print_changes([step])
    apply_report.print_warning("session \x1b]0;mine\x07")
    why = "ssh: \x1b[2J\nno route"
    apply_report.print_outcome(
        ApplyResult(outcome=ApplyOutcome.LEFT, steps=[step], why=why, left=[str(step)])
    )
    assert all(line.isprintable() for said in capsys.readouterr() for line in said.splitlines())


def test_a_step_is_a_code_with_arguments_beside_the_words() -> None:
    there = OVS_MIRROR(mirror="m", bridge="br0", sources=["eth1:rx", "eth2:tx"], monitor="eth9")
    empty = OVS_EMPTY_MIRROR(mirror="m", bridge="br0", monitor="eth9")
    steps = [
        CommandStep(what=ADD_MIRROR(there), command=("a",)),
        CommandStep(what=CHANGE_MIRROR(before=there, after=empty), command=("b",)),
    ]
    result = ApplyResult(outcome=ApplyOutcome.WOULD_CHANGE, steps=steps)
    add, change = apply_report.as_json(result, [])["steps"]
    assert add["what"] == "+ mirror m on br0: eth1:rx, eth2:tx -> eth9"
    assert add["finding"]["code"] == "switch_step.add_mirror"
    assert add["finding"]["arguments"]["mirror"]["arguments"]["monitor"] == "eth9"
    was = "~ mirror m on br0: eth1:rx, eth2:tx -> eth9 becomes mirror m on br0: nothing -> eth9"
    assert (change["what"], change["command"]) == (was, ["b"])


def test_junos_gives_its_lock_back_wherever_it_took_it() -> None:
    for part in ("setup", "remove"):
        given = bare("junos", "--source", port("junos", 1), "--part", part).splitlines()
        assert given.count("configure exclusive") == 1
        assert given[-2:] == ["commit", "exit"]


@pytest.mark.parametrize("os", EVERY)
def test_what_is_known_before_pasting_is_of_the_way_that_is_asked(os: str) -> None:
    """That copies are not cut is of both ways; notes of the other way are not printed."""
    platform = switch_platforms.platform_named(os)
    ways = [False, True] if platform.erspan else [False]
    for erspan in ways:
        given = ("switch", "render", "--source", port(os, 1), *words(os, erspan=erspan))
        code, _, err = flowcheck(*given)
        assert code == 0, err
        told = " ".join(err.split())
        assert platform.tried in told and platform.truncation in told
        assert all((note in told) == erspan for note in platform.erspan_remarks)
        assert all((note in told) != erspan for note in platform.span_remarks)
        code, _, err = flowcheck(*given, "--part", "remove")
        assert "once `--part check` shows these very ports" in " ".join(err.split())
