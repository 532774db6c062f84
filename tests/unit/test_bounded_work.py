"""No packet of a stranger costs the packet path more than its own: not by what it names, nor by
what it left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import work_count

pytestmark = pytest.mark.xdist_group("counted")
"""The core that counts is built once."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield work_count.build(tmp_path_factory.mktemp("counting"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["old_psns", "refusals", "standing", "crowding", "claims"])
def test_a_hundredfold_of_it_costs_a_packet_hardly_more(name: str, built: Path) -> None:
    """The logarithm of a hundred at most, where all it leads to is looked for in a tree."""
    blocks = work_count.counted(built, name)
    least, most = blocks[10], blocks[1000]
    assert most < 3 * least, blocks
