"""A ring all-reduce whose data are really moved: nothing of the product's schedules."""

from __future__ import annotations


def sums_passing(size: int) -> list[list[int]]:
    """[place of who sends in the ring] chunks that pass its link with everybody's part in them, in
    order. Every rank sends one and adds what it gets to its own, until all have all."""
    held = [[{place} for _ in range(size)] for place in range(size)]
    passed: list[list[int]] = [[] for _ in range(size)]
    for step in range(2 * size - 2):
        moving = []
        for at in range(size):
            chunk = (at - 1 - step) % size
            moving.append((at, chunk, set(held[at][chunk])))
        for at, chunk, parts in moving:
            if len(parts) == size:
                passed[at].append(chunk)
            held[(at + 1) % size][chunk] |= parts
    assert all(len(parts) == size for chunks in held for parts in chunks)
    return passed
