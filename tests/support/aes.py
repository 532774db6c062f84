"""AES's round as FIPS 197 writes it, in numpy, and the digest that the replica makes of it."""

from __future__ import annotations

import numpy as np


def _times(a: int, b: int) -> int:
    """Section 4.2: the product of two polynomials, modulo x^8 + x^4 + x^3 + x + 1."""
    product = 0
    for power in range(8):
        product ^= (a << power) * (b >> power & 1)
    for power in range(14, 7, -1):
        product ^= (0x11B << (power - 8)) * (product >> power & 1)
    return product


def _substitute(a: int) -> int:
    """Section 5.1.1: the inverse, then each bit with four others and 0x63."""
    inverse = next((b for b in range(256) if _times(a, b) == 1), 0)
    bit = [inverse >> i & 1 for i in range(8)]
    mixed = [sum(bit[(i + step) % 8] for step in (0, 4, 5, 6, 7)) % 2 for i in range(8)]
    return sum(b << i for i, b in enumerate(mixed)) ^ 0x63


SUBSTITUTES = np.array([_substitute(a) for a in range(256)], np.uint8)
_PRODUCTS = {b: np.array([_times(a, b) for a in range(256)], np.uint8) for b in (1, 2, 3)}
_MATRIX = ((2, 3, 1, 1), (1, 2, 3, 1), (1, 1, 2, 3), (3, 1, 1, 2))


def unmixed(lanes: np.ndarray) -> np.ndarray:
    """SubBytes and ShiftRows of [..., 16] bytes: byte r + 4 c of a lane is in row r, column c."""
    state = SUBSTITUTES[lanes].reshape(*lanes.shape[:-1], 4, 4)
    rows = [np.roll(state[..., row], -row, -1) for row in range(4)]
    return np.stack(rows, -1).reshape(lanes.shape)


def cipher_round(lanes: np.ndarray, key: np.ndarray) -> np.ndarray:
    """SubBytes, ShiftRows, MixColumns and AddRoundKey of [..., 16] bytes."""
    columns = unmixed(lanes).reshape(*lanes.shape[:-1], 4, 4)
    rows = [
        np.bitwise_xor.reduce([_PRODUCTS[b][columns[..., i]] for i, b in enumerate(line)])
        for line in _MATRIX
    ]
    return np.stack(rows, -1).reshape(lanes.shape) ^ key


def encrypted(plain: bytes, key: bytes) -> bytes:
    """A block under a key of 128 bits: sections 5.1 and 5.2."""
    words = [key[i : i + 4] for i in range(0, 16, 4)]
    constant = 1
    for i in range(4, 44):
        word = words[-1]
        if i % 4 == 0:
            turned = bytes(int(SUBSTITUTES[b]) for b in word[1:] + word[:1])
            word = bytes([turned[0] ^ constant]) + turned[1:]
            constant = _times(constant, 2)
        words.append(bytes(a ^ b for a, b in zip(words[i - 4], word, strict=True)))
    keys = np.frombuffer(b"".join(words), np.uint8).reshape(11, 16)
    state = np.frombuffer(plain, np.uint8) ^ keys[0]
    for each in keys[1:10]:
        state = cipher_round(state, each)
    return (unmixed(state) ^ keys[10]).tobytes()


PI = bytes.fromhex("243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89")


def digest(data: bytes) -> bytes:
    """As dpdk_ext/step/fc_digest.h says it."""
    lanes = np.frombuffer(PI, np.uint8).reshape(2, 16)
    whole = np.frombuffer(data + bytes(-len(data) % 32), np.uint8).reshape(-1, 2, 16)
    for pair in whole:
        lanes = cipher_round(lanes, pair)
    number = np.frombuffer(len(data).to_bytes(16, "little"), np.uint8)
    lane = cipher_round(cipher_round(lanes[0], number), lanes[1])
    for _ in range(3):
        lane = cipher_round(lane, np.zeros(16, np.uint8))
    return lane.tobytes()
