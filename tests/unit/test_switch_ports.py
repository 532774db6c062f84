"""Names of ports: nothing that could end a line or a word comes into a command."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_mirror_sessions import LEADING_ZERO
from flowcheck.ops.switch import switch_platforms
from tests.unit.test_switch_render import EVERY, port


@settings(max_examples=60, deadline=None)
@given(os=st.sampled_from(EVERY), name=st.text(max_size=24))
def test_no_port_name_ends_a_line_or_a_word(os: str, name: str) -> None:
    """Whatever passes is made of letters, digits and the few marks ports have."""
    _passes_only_as_one_port(os, name)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(EVERY))
def test_a_port_with_something_behind_it_is_no_port(data: st.DataObject, os: str) -> None:
    tail = data.draw(st.text(alphabet="\n\r\t\v;|&$`'\"\\<>(){}#! \x00\x85\u2028,", min_size=1))
    with pytest.raises(ConfigError):
        switch_platforms.platform_named(os).canonical_port(port(os, 1) + tail)


@settings(max_examples=60, deadline=None)
@given(os=st.sampled_from(EVERY), data=st.data())
def test_what_a_platforms_own_pattern_makes_is_one_port(os: str, data: st.DataObject) -> None:
    platform = switch_platforms.platform_named(os)
    name = data.draw(st.from_regex(re.compile(platform.port, re.ASCII), fullmatch=True))
    _passes_only_as_one_port(os, name)


@pytest.mark.parametrize("os", EVERY)
def test_one_port_has_one_spelling_where_its_numbers_are_numbers(os: str) -> None:
    """ethernet 1/02 is ethernet 1/2 to a switch and would pass as another port here."""
    name = port(os, 2)
    padded = re.sub(r"(\d+)$", r"0\1", name)
    platform = switch_platforms.platform_named(os)
    assert platform.canonical_port(name)
    if os in ("openvswitch", "tc"):
        assert platform.canonical_port(padded) == padded
        return
    for monitor in (False, True):
        with refused_as(LEADING_ZERO, kind=ConfigError):
            platform.canonical_port(padded, monitor=monitor)


def test_a_bundle_of_numbers_too_and_not_one_that_somebody_named() -> None:
    with refused_as(LEADING_ZERO, kind=ConfigError):
        switch_platforms.platform_named("junos").canonical_port("ae01")
    assert switch_platforms.platform_named("junos").canonical_port("ae10") == "ae10"
    assert switch_platforms.platform_named("cumulus").canonical_port("bond01") == "bond01"


def _passes_only_as_one_port(os: str, name: str) -> None:
    try:
        spelled = switch_platforms.platform_named(os).canonical_port(name)
    except ConfigError:
        return
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_./:-]*( [0-9/:]+)?", spelled, re.ASCII)
