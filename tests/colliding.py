"""Computes two keys with the same hash. This is possible because xxHash is not a cryptographic hash."""

from __future__ import annotations

import itertools

from xxhash import xxh64_intdigest

_FIRST, _SECOND, _MASK = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, (1 << 64) - 1
#: xxh64 reads stripes of 32 bytes. Each of its four lanes takes 8 bytes of a stripe.
_LANE, _STRIPE = 8, 32


def colliding_texts() -> tuple[str, str]:
    """Two printable texts of 64 characters whose UTF-8 bytes have the same ``xxh64`` with seed 0.

    A lane adds its 8 bytes of each stripe, multiplied by a constant. So 8 suitable bytes in the second stripe cancel a
    change in the first stripe. The loop tries some thousand changes until those 8 bytes are printable, too.
    """
    one = bytearray(b"A" * 2 * _STRIPE)
    first = _after(bytes(one[:_LANE]))
    for number in itertools.count():
        changed = f"{number:08d}".encode()
        apart = (first - _after(changed)) * pow(_SECOND, -1, 1 << 64)
        undone = (int.from_bytes(one[_STRIPE : _STRIPE + _LANE], "little") + apart) & _MASK
        undoing = undone.to_bytes(_LANE, "little")
        if all(0x20 < byte < 0x7F for byte in undoing):
            other = bytearray(one)
            other[:_LANE], other[_STRIPE : _STRIPE + _LANE] = changed, undoing
            assert one != other
            assert xxh64_intdigest(bytes(one)) == xxh64_intdigest(bytes(other))
            return one.decode(), other.decode()
    raise AssertionError("unreachable")


def _after(taken: bytes) -> int:
    """The state of the first lane after it has taken these 8 bytes of the first stripe."""
    mixed = (_FIRST + _SECOND + int.from_bytes(taken, "little") * _SECOND) & _MASK
    return ((mixed << 31 | mixed >> 33) * _FIRST) & _MASK
