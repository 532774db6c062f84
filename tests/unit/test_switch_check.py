"""Rules on a mirror session, against sums worked out by hand."""

import json
import re
from pathlib import Path

import pytest

from flowcheck.findings.catalog.mirror_session_rules import OVERLAP_UNCHECKED
from flowcheck.ops.switch import mirror_session_options, switch_platforms
from flowcheck.ops.switch.config_rendering import CommandPart, render
from tests.unit.test_cli import flowcheck, refused
from tests.unit.test_switch_render import EVERY, port, words

SONIC = ("--os", "sonic", "--monitor", "Ethernet124")
EOS = ("--os", "eos", "--monitor", "Ethernet32/1")
HUNDRED = ("--source-gbps", "100", "--monitor-gbps", "100")


def checked(*words: str | Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and verdict and reason of each rule."""
    code, out, err = flowcheck("switch", "check", "--json", *words)
    assert err == ""
    told = json.loads(out)
    assert told["exit_code"] == code
    found = ((one["rule"], one["verdict"], one["why"]) for one in told["findings"])
    return code, {rule: (verdict, why["sentence"]) for rule, verdict, why in found}


def test_one_direction_fits_a_monitor_port_of_its_speed_and_two_do_not() -> None:
    code, one = checked(*EOS, *HUNDRED, "--source", "Ethernet1/1")
    assert (code, one["speed"][0]) == (0, "ok")
    assert "both ways" not in one
    code, two = checked(*EOS, *HUNDRED, "--source", "Ethernet1/1", "--source", "Ethernet2/1")
    assert (code, two["speed"][0]) == (1, "refuse")
    assert "2 directions * 100 = 200 Gb/s, over 100 Gb/s by 100" in two["speed"][1]
    code, both = checked(*EOS, *HUNDRED, "--source", "Ethernet1/1:both")
    assert (code, both["both ways"][0]) == (1, "refuse")
    wide = ("--source-gbps", "100", "--monitor-gbps", "200")
    code, both = checked(*EOS, *wide, "--source", "Ethernet1/1:both")
    assert (code, both["both ways"][0]) == (0, "ok")


@pytest.mark.parametrize(
    ("protocol", "mean", "verdict"),
    # 2 * 15/16 * 4e9 bytes = 7.5e9 bytes = 60 Gb a direction; two directions in 1.5 s: 80 Gb/s
    [("simple", "80 Gb/s", "warn"), ("ll128", "85.33 Gb/s", "warn"), ("ll", "160 Gb/s", "refuse")],
)
def test_figures_turn_a_refusal_into_a_warning_at_most(
    protocol: str, mean: str, verdict: str
) -> None:
    job = ("--gradient-bytes", "4000000000", "--members", "16", "--step-s", "1.5")
    sources = ("--source", "Ethernet1/1", "--source", "Ethernet2/1")
    code, found = checked(*EOS, *HUNDRED, *sources, *job, "--protocol", protocol)
    assert found["speed"][0] == verdict
    assert f"= {mean}" in found["speed"][1]
    assert code == (verdict == "refuse")
    assert verdict == "refuse" or "switch's buffer" in found["speed"][1]


@pytest.mark.parametrize(
    ("os", "more", "needed"),
    # a RoCE frame of 4096 with VLAN: 14+4+20+8+12+16+4+4096+4 = 4178; + IP 20 + GRE 8 + ERSPAN 8
    [("nxos", ("--session", "1"), 4214), ("eos", (), 4178 + 20 + 4)],
)
def test_a_tunnels_route_must_take_a_whole_frame(
    os: str, more: tuple[str, ...], needed: int
) -> None:
    speeds = ("--source-gbps", "100", "--monitor-gbps", "400")
    given = ("--os", os, *more, *speeds, "--source", "Ethernet1/1")
    tunnel = ("--erspan", "src=10.0.0.1,dst=10.0.0.2")
    for path, verdict in ((needed, "ok"), (needed - 1, "refuse")):
        code, found = checked(*given, *tunnel, "--path-mtu", str(path))
        assert (found["path MTU"][0], code) == (verdict, int(verdict == "refuse"))
        assert f"= {needed} bytes" in found["path MTU"][1]
    assert checked(*given, *tunnel)[1]["path MTU"][0] == "warn"


def test_a_tunnels_own_bytes_count_against_its_route() -> None:
    tunnel = ("--os", "sonic", "--erspan", "src=10.0.0.1,dst=10.0.0.2", "--path-mtu", "9100")
    _, found = checked(*tunnel, *HUNDRED, "--source", "Ethernet0")
    assert found["speed"][0] == "refuse"
    assert "(4178+50)/4178" in found["speed"][1]


@pytest.mark.parametrize(
    ("given", "verdict", "why"),
    [
        (("campus", "--session", "1", "GigabitEthernet0/0/1"), "warn", "observe-port 1 inbound"),
        (("onyx", "--session", "1", "ethernet1/1"), "warn", "direction ingress"),
        (("onyx", "--session", "1", "ethernet1/1:both"), "ok", "weakest of them D"),
        (("sonic", "Ethernet4"), "ok", "weakest of them V"),
    ],
)
def test_the_weakest_line_of_this_very_set_up_is_its_evidence(
    given: tuple[str, ...], verdict: str, why: str
) -> None:
    os, *number, source = given
    monitor = re.sub(r"[0-9]+(:both)?$", "32", source)
    asked_for = ("--os", os, *number, "--source", source, "--monitor", monitor)
    code, found = checked(*asked_for, "--source-gbps", "25", "--monitor-gbps", "100")
    assert (code, found["evidence"][0]) == (0, verdict)
    assert why in found["evidence"][1]


@pytest.mark.parametrize("os", EVERY)
def test_what_a_platform_says_of_itself_is_its_weakest_line_of_any_direction(os: str) -> None:
    platform = switch_platforms.platform_named(os)
    for erspan, said in ((False, platform.span), (True, platform.erspan)):
        letters = ""
        for way in ("rx", "tx", "both") if said else ():
            given = words(os, erspan=erspan)
            option = dict(zip(given[::2], given[1::2], strict=True))
            request = mirror_session_options.parse_session(
                platform,
                [f"{port(os, 1)}:{way}"],
                monitor=option.get("--monitor"),
                erspan=option.get("--erspan"),
                session=option.get("--session"),
                bridge=option.get("--bridge"),
            )
            lines = render(os, request, [CommandPart.SETUP])
            letters += "".join(line.evidence for line in lines if line.part is CommandPart.SETUP)
        assert said == next((letter for letter in "MDV" if letter in letters), None)


HELD = """
[[session]]
session = "{session}"
sources = ["{source}"]
monitor = "{monitor}"
"""


@pytest.mark.parametrize(
    ("session", "source", "monitor", "why"),
    [
        ("flowcheck", "Ethernet64", "Ethernet96", "exists already"),
        ("x", "Ethernet64", "Ethernet124", "sends its copies to Ethernet124 too"),
        ("x", "Ethernet124", "Ethernet96", "watches Ethernet124"),
        ("x", "Ethernet64", "Ethernet4", "is the monitor port of session x"),
        ("x", "Ethernet4:both", "Ethernet96", "the same packets would come twice"),
        ("x", "Ethernet40", "Ethernet96", "by their beginning"),
        ("x", "Ethernet4:tx", "Ethernet96", None),
        ("x", "Ethernet64", "Ethernet96", None),
    ],
)
def test_what_the_switch_holds_already_is_not_crossed(
    tmp_path: Path, session: str, source: str, monitor: str, why: str | None
) -> None:
    state = tmp_path / "held.toml"
    state.write_text(HELD.format(session=session, source=source, monitor=monitor))
    code, found = checked(*SONIC, *HUNDRED, "--source", "Ethernet4", "--state", state)
    assert code == int(why is not None)
    assert found["overlap"][0] == ("ok" if why is None else "refuse")
    assert why is None or why in found["overlap"][1]


def test_the_fourth_session_of_nexus_is_rx_only(tmp_path: Path) -> None:
    state = tmp_path / "held.toml"
    full = [
        HELD.format(session=n, source=f"Ethernet1/{n}:both", monitor=f"Ethernet1/{n + 40}")
        for n in (1, 2, 3)
    ]
    state.write_text("".join(full))
    given = ("--os", "nxos", "--session", "4", "--monitor", "Ethernet1/32", *HUNDRED)
    code, found = checked(*given, "--source", "Ethernet1/9:tx", "--state", state)
    assert (code, found["overlap"][0]) == (1, "refuse")
    assert "rx only" in found["overlap"][1]
    assert checked(*given, "--source", "Ethernet1/9:rx", "--state", state)[0] == 0


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            ("--os", "cumulus", "--session", "8", "--monitor", "swp32", "--source", "swp1"),
            "session",
        ),
        (("--os", "aoscx", "--session", "0", "--monitor", "1/1/9", "--source", "1/1/1"), "session"),
        ((*SONIC, "--source", "Ethernet0:rx", "--source", "Ethernet4:tx"), "direction"),
        ((*SONIC, "--source", "Ethernet0", "--source", "Ethernet0"), "ports"),
        ((*SONIC, "--source", "Ethernet124"), "monitor"),
    ],
)
def test_limits_of_a_platform_are_refused_with_the_reason(
    words: tuple[str, ...], rule: str
) -> None:
    code, found = checked(*words, "--source-gbps", "1", "--monitor-gbps", "100")
    assert (code, found[rule][0]) == (1, "refuse")
    assert [name for name, (verdict, _) in found.items() if verdict == "refuse"] == [rule]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--gradient-bytes", "5"), "--members and --step-s says nothing without the others"),
        (("--roce-mtu", "1500"), "256, 512, 1024, 2048, 4096"),
        (("--source-gbps", "nan"), "must be a finite number"),
        (("--monitor-gbps", "inf"), "must be a finite number"),
        (("--monitor-gbps", "0"), "must be a finite number above 0"),
        (("--protocol", "tree"), "simple, ll, ll128"),
        (("--state", "absent.toml"), "absent.toml"),
    ],
)
def test_figures_that_cannot_be_are_refused(more: tuple[str, ...], sentence: str) -> None:
    given = ("switch", "check", *SONIC, *HUNDRED, "--source", "Ethernet0")
    assert sentence in refused(*given, *more)


def test_a_session_that_is_stated_by_halves_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "held.toml"
    state.write_text('[[session]]\nsession = "one"\nmonitor = "Ethernet8"\n')
    given = ("switch", "check", *SONIC, *HUNDRED, "--source", "Ethernet0", "--state", str(state))
    assert "sources" in refused(*given)
    state.write_bytes(b"\xff\xfe")
    assert "is text in UTF-16" in refused(*given)
    state.write_text("[[session")
    assert "is not valid TOML" in refused(*given)
    state.write_text('[[session]]\nsession = "one"\nsources = []\nmonitor = "Ethernet12"\n')
    assert checked(*SONIC, *HUNDRED, "--source", "Ethernet0", "--state", state)[0] == 0


def test_people_read_a_line_for_each_rule() -> None:
    code, out, _ = flowcheck("switch", "check", *EOS, *HUNDRED, "--source", "Ethernet1/1")
    assert code == 0
    assert out.splitlines()[0].split()[:2] == ["ok", "ports"]
    rules = [line for line in out.splitlines() if not line.startswith(" ")]
    assert {line.split()[0] for line in rules} == {"ok", "warn"}
    at = out.splitlines().index(next(line for line in rules if line.startswith("warn")))
    assert out.splitlines()[at + 1].strip() == OVERLAP_UNCHECKED().remedy


def test_a_program_reads_numbers_and_no_text_of_them() -> None:
    job = ("--gradient-bytes", "4000000000", "--members", "16", "--step-s", "1.5")
    sources = ("--source", "Ethernet1/1", "--source", "Ethernet2/1")
    _, out, _ = flowcheck("switch", "check", "--json", *EOS, *HUNDRED, *sources, *job)
    why = next(one["why"] for one in json.loads(out)["findings"] if one["rule"] == "speed")
    given = why["arguments"]
    assert {name: given[name] for name in ("gbps", "over", "times", "mean")} == {
        "gbps": 100,
        "over": 100,
        "times": 2,
        "mean": 80,
    }
    assert given["sum"]["arguments"]["gbps"] == 200


@pytest.mark.parametrize(
    ("direction", "numbers", "said"),
    [("rx", [3], "takes 3 of "), ("both", [3, 4], "takes 3 and 4 of ")],
)
def test_the_session_numbers_that_are_taken_are_a_list(
    direction: str, numbers: list[int], said: str
) -> None:
    given = ("--os", "cumulus", "--session", "3", "--monitor", "swp32", *HUNDRED)
    _, out, _ = flowcheck("switch", "check", "--json", *given, "--source", f"swp1:{direction}")
    why = next(one["why"] for one in json.loads(out)["findings"] if one["rule"] == "session")
    assert why["arguments"]["numbers"] == numbers
    assert said in why["sentence"]
