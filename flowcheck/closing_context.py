"""Base class of objects that own a C handle or file: a context manager that calls close()."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closeable:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Gives back what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
