"""Two keys with one hash: xxHash is no cryptographic hash, so they can be computed."""

from __future__ import annotations

import itertools

from xxhash import xxh64_intdigest

_FIRST, _SECOND, _MASK = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, (1 << 64) - 1
#: Bytes that one of four lanes takes of a stripe, and of the whole stripe.
_LANE, _STRIPE = 8, 32


def colliding_texts() -> tuple[str, str]:
    """Two texts of 64 letters, digits and signs whose UTF-8 have the same ``xxh64`` with seed 0.

    A lane adds its 8 bytes of each stripe to what it has, times a number. So a change in the first stripe is undone by
    one number in the second, and of some thousand changes one is undone by a number whose bytes are text, too.
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
    """The first lane after its bytes of the first stripe."""
    mixed = (_FIRST + _SECOND + int.from_bytes(taken, "little") * _SECOND) & _MASK
    return ((mixed << 31 | mixed >> 33) * _FIRST) & _MASK
