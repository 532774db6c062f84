"""Words for a code, in what commands print for people."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

Code = TypeVar("Code", bound=StrEnum)


def words_of(code: Code, odd: Mapping[Code, str]) -> str:
    """The code's own words. odd: those of codes that are said otherwise."""
    return odd.get(code, code.replace("_", " "))
