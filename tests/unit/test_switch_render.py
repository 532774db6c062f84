"""Commands for each switch, against listings written from the vendors' words for sixteen nodes."""

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from flowcheck.ops.switch import mirror_session_options, switch_platforms
from flowcheck.ops.switch.config_rendering import MARKED, CommandPart, _environment, render
from tests.unit.test_cli import flowcheck, refused

LISTINGS = Path(__file__).parents[1] / "data" / "switch"
PORTS = {
    "comware": "HundredGigE1/0/{}",
    "cloudengine": "100GE1/0/{}",
    "campus": "GigabitEthernet0/0/{}",
    "nxos": "Ethernet1/{}",
    "eos": "Ethernet{}/1",
    "junos": "et-0/0/{}",
    "cumulus": "swp{}",
    "onyx": "ethernet 1/{}",
    "os10": "ethernet1/1/{}",
    "rgos": "hundredGigabitEthernet 0/{}",
    "aoscx": "1/1/{}",
    "openvswitch": "eth{}",
    "tc": "eth{}",
}
SONIC = ("sonic", "sonic-config-db")


def port(os: str, number: int) -> str:
    """The `number`th port of a switch of 32, as a user would write it."""
    return f"Ethernet{4 * (number - 1)}" if os in SONIC else PORTS[os].format(number)


def words(os: str, *, erspan: bool = False) -> list[str]:
    """Options every platform wants beside its sources."""
    platform = switch_platforms.platform_named(os)
    given = ["--os", os]
    if platform.identity == "number":
        given += ["--session", "1"]
    if platform.bridge:
        given += ["--bridge", "br0"]
    if erspan:
        given += ["--erspan", "src=10.0.0.1,dst=10.0.0.2,id=5,dscp=8"]
    if not erspan or platform.erspan_port:
        given += ["--monitor", port(os, 32)]
    return given


def bare(os: str, *more: str, erspan: bool = False) -> str:
    """What is printed to be pasted."""
    given = [*words(os, erspan=erspan), *more]
    said = dict(zip(given[::2], given[1::2], strict=True))
    pairs = list(zip(given[::2], given[1::2], strict=True))
    request = mirror_session_options.parse_session(
        switch_platforms.platform_named(os),
        [word for option, word in pairs if option == "--source"],
        monitor=said.get("--monitor"),
        erspan=said.get("--erspan"),
        session=said.get("--session"),
        bridge=said.get("--bridge"),
    )
    parts = [CommandPart(word) for option, word in pairs if option == "--part"]
    lines = render(os, request, parts or [CommandPart.SETUP, CommandPart.CHECK])
    return "".join(f"{line.command}\n" for line in lines)


EVERY = sorted([*PORTS, *SONIC])


def test_every_platform_is_judged_here() -> None:
    assert sorted(switch_platforms.all_platforms()) == EVERY


@pytest.mark.parametrize("os", EVERY)
def test_sixteen_nodes_are_what_the_vendors_words_say(os: str) -> None:
    sources = [word for number in range(1, 17) for word in ("--source", port(os, number))]
    parts = [word for part in ("setup", "check", "save", "remove") for word in ("--part", part)]
    assert bare(os, *sources, *parts) == (LISTINGS / f"{os}.txt").read_text()


@pytest.mark.parametrize("os", EVERY)
def test_a_set_up_looks_first_and_never_saves(os: str) -> None:
    listing = (LISTINGS / f"{os}.txt").read_text()
    setup = bare(os, "--source", port(os, 1), "--part", "setup")
    assert listing.startswith(setup.splitlines()[0])
    assert setup.startswith(bare(os, "--source", port(os, 1), "--part", "look"))
    for saving in ("save", "startup", "write"):
        assert saving not in setup


ROUTED = {
    "aoscx": [" destination tunnel 10.0.0.2 source 10.0.0.1", " enable"],
    "comware": ["  monitor-port", "destination-ip 10.0.0.2 source-ip 10.0.0.1 dscp 8\n"],
    "cloudengine": [" observe-port 1 destination-ip 10.0.0.2 source-ip 10.0.0.1"],
    "nxos": [
        "monitor erspan origin ip-address 10.0.0.1 global",
        "monitor session 1 type erspan-source",
        "  erspan-id 5",
        "  vrf default",
        "  destination ip 10.0.0.2\n  ip dscp 8",
        "  source interface ethernet 1/1-2 rx",
    ],
    "eos": [
        "monitor session flowcheck destination tunnel mode gre source 10.0.0.1 destination 10.0.0.2"
    ],
    "junos": ["set forwarding-options analyzer flowcheck output ip-address 10.0.0.2"],
    "cumulus": [
        "nv set system port-mirror session 1 erspan direction ingress",
        "nv set system port-mirror session 1 erspan source-port swp1",
        "nv set system port-mirror session 1 erspan destination source-ip 10.0.0.1",
        "nv set system port-mirror session 1 erspan destination dest-ip 10.0.0.2",
    ],
    "sonic": [
        "sudo config mirror_session erspan add flowcheck 10.0.0.1 10.0.0.2 8 64 0x88be 0 "
        "Ethernet0,Ethernet4 rx"
    ],
    "sonic-config-db": ['  "type": "ERSPAN",', '  "src_ip": "10.0.0.1",', '  "ttl": "64",'],
    "os10": [
        "monitor session 1 type erpm-source",
        " source-ip 10.0.0.1 destination-ip 10.0.0.2 gre-protocol 35006\n ip ttl 64\n ip dscp 8",
    ],
    "rgos": [" monitor session 1 erspan-source", "  origin ip address 10.0.0.1", "  ip dscp 8"],
    "openvswitch": [
        "  -- add-port br0 fc-es5 external_ids:flowcheck=flowcheck \\",
        "  -- set interface fc-es5 type=erspan options:key=5 "
        "options:remote_ip=10.0.0.2 options:local_ip=10.0.0.1 options:erspan_ver=1 "
        "options:erspan_idx=5",
        "  -- --id=@m get port fc-es5 \\",
    ],
    "tc": [
        "ip link add dev fc-es5 type erspan seq key 5 local 10.0.0.1 remote 10.0.0.2 "
        "erspan_ver 1 erspan 5",
        "ip link set dev fc-es5 up",
    ],
}


@pytest.mark.parametrize("os", EVERY)
def test_a_tunnel_is_said_in_the_platforms_words_or_refused(os: str) -> None:
    sources = ["--source", port(os, 1), "--source", port(os, 2)]
    if switch_platforms.platform_named(os).erspan is None:
        assert os not in ROUTED
        error = refused("switch", "render", *words(os, erspan=True), *sources)
        assert "Use `--monitor`." in error
        return
    out = bare(os, *sources, erspan=True)
    at = 0
    for line in ROUTED[os]:
        assert line.strip() in out[at:], line
        at = out.index(line.strip(), at)


@pytest.mark.parametrize(
    ("os", "line"),
    [
        ("comware", " mirroring-group 1 mirroring-port HundredGigE1/0/2 outbound"),
        ("cloudengine", "  port-mirroring observe-port 1 outbound"),
        ("nxos", "  source interface ethernet 1/2 tx"),
        ("junos", "set forwarding-options analyzer flowcheck input egress interface et-0/0/2.0"),
        ("cumulus", "nv set system port-mirror session 2 span direction egress"),
        ("openvswitch", "select-src-port=@s1,@s3 select-dst-port=@s2,@s3"),
        ("tc", "tc filter add dev eth2 egress protocol all pref 1 handle 1 matchall action mirred"),
    ],
)
def test_each_direction_has_the_switchs_word(os: str, line: str) -> None:
    ways = {1: "rx", 2: "tx", 3: "both"}
    sources = [w for n, way in ways.items() for w in ("--source", f"{port(os, n)}:{way}")]
    assert line in bare(os, *sources)


def test_one_direction_a_session_takes_the_next_number_for_the_other() -> None:
    out = bare("cumulus", "--source", "swp1:both").splitlines()
    assert "nv set system port-mirror session 1 span direction ingress" in out
    assert "nv set system port-mirror session 2 span source-port swp1" in out
    assert out.count("nv config apply") == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--source", "Ethernet0:rx", "--source", "Ethernet4:tx"], "one direction for all ports"),
        (["--source", "Ethernet0", "--source", "Ethernet0:tx"], "Name each port once"),
        (["--source", "Ethernet124"], "copied again"),
        (["--source", "eth0"], "looks like Ethernet0"),
        (["--source", "Ethernet0:up"], ":rx, :tx or :both"),
        (["--source", "Ethernet0", "--session", "a b"], "at most 16"),
        (["--source", "Ethernet0", "--bridge", "br0"], "has no bridges"),
        (["--source", "Ethernet0", "--form", "u32"], "Leave `--form` out"),
        (["--source", "Ethernet0", "--part", "boot"], "look, setup, check, save, remove"),
    ],
)
def test_what_cannot_be_said_is_refused_with_what_can(given: list[str], sentence: str) -> None:
    assert sentence in refused("switch", "render", *words("sonic"), *given)


def test_a_number_is_never_taken_in_silence() -> None:
    given = ("--os", "nxos", "--source", "ethernet1/1", "--monitor", "ethernet1/32")
    assert "that is not in use" in refused("switch", "render", *given)
    given = ("--os", "cumulus", "--source", "swp1:both", "--monitor", "swp32", "--session", "7")
    assert "takes 7 and 8" in refused("switch", "render", *given)


def test_the_nearest_system_is_named() -> None:
    assert "Did you mean cumulus?" in refused(
        "switch", "render", "--os", "cumulos", "--source", "a"
    )


def test_what_a_template_forgets_is_an_error_and_so_is_a_line_without_evidence() -> None:
    with pytest.raises(UndefinedError):
        _environment().from_string("V| {{ session.monitor }}").render()
    assert MARKED.fullmatch("mirroring-group 1 local") is None


@pytest.mark.parametrize("os", EVERY)
def test_templates_have_the_same_blocks_in_the_same_order(os: str) -> None:
    text = (switch_platforms.folder() / f"{os}.j2").read_text()
    assert re.findall(r"\{% block (\w+) %\}", text) == [part.value for part in CommandPart]


def test_each_line_has_its_evidence_beside_it_and_never_inside() -> None:
    platform = switch_platforms.platform_named("onyx")
    request = mirror_session_options.parse_session(
        platform, ["ethernet 1/1"], monitor="ethernet 1/32", session="1"
    )
    lines = {line.command: line.evidence for line in render("onyx", request, list(CommandPart))}
    assert lines["  add source interface ethernet 1/1 direction ingress"] == "M"
    assert lines["  destination interface ethernet 1/32 force"] == "D"
    code, out, err = flowcheck(
        *("switch", "render", *words("onyx"), "--source", "ethernet 1/1"),
    )
    assert code == 0
    assert out == bare("onyx", "--source", "ethernet 1/1")
    assert "ever tried on a device" in err
    assert "from memory" in err


def test_the_two_hooks_of_a_device_share_the_tables_of_u32() -> None:
    """Linux counts u32's tables by qdisc, and both hooks are on clsact: the second has 801."""
    code, out, _ = flowcheck(
        *("switch", "render", "--bare", "--os", "tc", "--form", "u32", "--monitor", "eth32"),
        *("--source", "eth1:both", "--source", "eth2:tx", "--part", "remove"),
    )
    assert code == 0
    assert re.findall(r"(?<= && )tc filter del dev (.* u32)", out) == [
        "eth1 ingress protocol all pref 1 handle 800::1 u32",
        "eth1 egress protocol all pref 2 handle 801::1 u32",
        "eth2 egress protocol all pref 1 handle 800::1 u32",
    ]
