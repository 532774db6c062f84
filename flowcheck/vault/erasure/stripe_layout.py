"""Where the bytes of a save lie: stripes of k data blocks and m parities, rotated over the stores.

Role r of stripe s (data first, then parities) is with shard (r + s) mod (k + m), so that each shard
has its share of parities, whatever k and m are.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcheck.vault.erasure.isal_code import ALIGN_BYTES

BLOCK_BYTES = 1 << 20
"""Bytes of a block. A choice: smaller costs requests, larger reads more for a few bytes."""


@dataclass(frozen=True, slots=True)
class StripeLayout:
    """Of so many bytes in stripes of `data` + `parity` blocks."""

    data: int
    parity: int
    block_bytes: int
    """A multiple of ALIGN_BYTES."""
    total_bytes: int

    @property
    def blocks(self) -> int:
        return self.data + self.parity

    @property
    def stripes(self) -> int:
        return -(-self.total_bytes // (self.data * self.block_bytes))

    def block_size(self, stripe: int) -> int:
        """Bytes of each block of a stripe: fewer in the last one, whose end is zeros."""
        left = self.total_bytes - stripe * self.data * self.block_bytes
        each = -(-min(left, self.data * self.block_bytes) // self.data)
        return -(-each // ALIGN_BYTES) * ALIGN_BYTES

    def shard_of(self, stripe: int, role: int) -> int:
        return (role + stripe) % self.blocks

    def role_of(self, stripe: int, shard: int) -> int:
        return (shard - stripe) % self.blocks

    @property
    def shard_bytes(self) -> int:
        """Bytes of the blocks of one shard."""
        last = self.stripes - 1
        return last * self.block_bytes + self.block_size(last) if self.stripes else 0
