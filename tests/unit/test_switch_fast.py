"""Monitor ports that are slower than their sources together are refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_mirror_sessions import (
    MONITOR_SLOWER,
    MONITOR_SLOWER_WITH_OTHERS,
)
from flowcheck.ops.switch import mirror_session_options, monitor_capacity, switch_platforms
from flowcheck.ops.switch.apply import ovs_state, sonic_state
from flowcheck.ops.switch.monitor_capacity import check_monitor_speed, device_gbps

SPEEDS = {"eth1": 100.0, "eth2": 100.0, "eth3": 25.0, "eth9": 200.0, "veth1": None, "tap": None}


def judged(monitor: str, *sources: str) -> None:
    session = mirror_session_options.parse_session(
        switch_platforms.platform_named("tc"), list(sources), monitor=monitor
    )
    check_monitor_speed(session, SPEEDS.__getitem__)


@pytest.mark.parametrize(
    ("monitor", "sources", "told"),
    [
        ("eth9", ("eth1", "eth2"), None),
        ("eth9", ("eth1:both",), None),
        (
            "eth9",
            ("eth1:both", "eth2"),
            MONITOR_SLOWER(gbps=200.0, parts="2 * 100 + 100", total=300.0),
        ),
        (
            "eth1",
            ("eth2", "eth3"),
            like(MONITOR_SLOWER, parts="100 + 25", total=125.0),
        ),
        (
            "eth3",
            ("eth1", "veth1"),
            MONITOR_SLOWER(gbps=25.0, parts="100", total=100.0),
        ),
        ("tap", ("eth1:both", "eth2:both"), None),
        ("eth3", ("veth1:both",), None),
    ],
)
def test_line_rates_decide_where_they_are_known(
    monitor: str, sources: tuple[str, ...], told: Wanted | None
) -> None:
    if not told:
        judged(monitor, *sources)
        return
    with refused_as(told, kind=ConfigError):
        judged(monitor, *sources)


def test_what_another_session_copies_there_already_is_in_the_sum() -> None:
    session = mirror_session_options.parse_session(
        switch_platforms.platform_named("tc"), ["eth1"], monitor="eth9"
    )
    check_monitor_speed(session, SPEEDS.__getitem__, ["eth2"])
    with refused_as(
        MONITOR_SLOWER_WITH_OTHERS,
        kind=ConfigError,
        others=("eth2", "eth3"),
        parts="100 + 100 + 25",
        total=225.0,
    ) as caught:
        check_monitor_speed(session, SPEEDS.__getitem__, ["eth2", "eth3"])
    assert caught.value.right == MONITOR_SLOWER_WITH_OTHERS(
        gbps=200, others=["eth2", "eth3"], parts="100 + 100 + 25", total=225
    )


def test_a_device_has_a_line_rate_where_hardware_is_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_capacity, "SYSFS", tmp_path)
    for name, speed, real in (("a", "100000", True), ("v", "10000", False), ("down", "-1", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")
        if real:
            (tmp_path / name / "device").mkdir()
    assert [device_gbps(name) for name in ("a", "v", "down", "none")] == [100.0, None, None, None]


@pytest.mark.parametrize(
    ("status", "speed", "gbps"),
    [
        ([["driver_name", "mlx5_core"]], 100_000_000_000, 100.0),
        ([["driver_name", "veth"]], 10_000_000_000, None),
        ([["driver_name", "mlx5_core"]], ["set", []], None),
        ([], 25_000_000_000, 25.0),
    ],
)
def test_open_vswitch_tells_it_as_its_database_writes_it(
    monkeypatch: pytest.MonkeyPatch, status: list[object], speed: object, gbps: float | None
) -> None:
    """Rows in the words of RFC 7047, 5.1, as ovsdb-client 3.1.0 printed them."""
    nothing = ["set", []]
    rows = {
        "Open_vSwitch": {"external_ids": ["map", []], "other_config": ["map", []]},
        "Bridge": {
            **{"_uuid": ["uuid", "b"], "name": "br0", "ports": ["uuid", "p"]},
            **{"mirrors": nothing, "controller": nothing},
        },
        "Port": {
            **{"_uuid": ["uuid", "p"], "name": "eth1", "interfaces": ["uuid", "i"]},
            **{"tag": nothing, "vlan_mode": nothing},
        },
        "Interface": {
            **{"_uuid": ["uuid", "i"], "name": "eth1", "type": "", "ofport": 1, "error": nothing},
            **{"link_speed": speed, "status": ["map", status]},
        },
    }
    answer = [{"rows": [rows[table]] if table in rows else []} for table in ovs_state.COLUMNS]
    monkeypatch.setattr(ovs_state, "run_json", lambda _: answer)
    port = ovs_state.read(None).port("eth1")
    assert port is not None and port.gbps == gbps


def test_sonic_tells_it_in_its_configuration() -> None:
    state = sonic_state.SonicState(
        sessions={},
        ports={"Ethernet0": {"speed": "400000"}, "Ethernet4": {}},
        bundles=frozenset(),
        members={},
        routed=frozenset(),
        status={},
        incapable=frozenset(),
    )
    found = [sonic_state.gbps(state, port) for port in ("Ethernet0", "Ethernet4", "PortChannel1")]
    assert found == [400.0, None, None]
