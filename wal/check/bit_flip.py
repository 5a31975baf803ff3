"""Find the single flipped bit that explains a wrong checksum.

A CRC is linear: the difference between the stored checksum and the computed one depends only on the
bits that differ, not on the data. One wrong bit at distance d from the end causes the same
difference in any message, and up to lengths far beyond a segment's each distance causes another
one. So walking back from the difference, byte by byte, finds the place without the right data.
Several wrong bits look like a single one with a probability of about the number of bits divided by
2^32. So this is used to explain and to report, never to serve corrected data.
"""

from __future__ import annotations

from zlib import crc32

SEARCH_BYTES_MAX = 16 << 20
_POLYNOMIAL = 0xEDB88320


def _table() -> list[int]:
    """Return the CRC's table: the result of eight steps for each low byte."""
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return rows


_TABLE = _table()
_BACK = {row >> 24: (low, row) for low, row in enumerate(_TABLE)}  # by high byte: all differ
_ONE_BIT = {_TABLE[1 << bit]: bit for bit in range(8)}  # the difference right after the byte


def wrong_bit(stored: int, computed: int, length: int) -> tuple[int, int] | None:
    """Return (byte, bit) in a message of `length` bytes, or None if no single bit explains it.

    A byte at or after `length` is in the stored checksum: its byte number is byte - length.
    """
    difference = stored ^ computed
    if difference.bit_count() == 1:
        at = difference.bit_length() - 1
        return length + at // 8, at % 8
    if not difference:
        return None
    for bytes_after in range(min(length, SEARCH_BYTES_MAX)):
        bit = _ONE_BIT.get(difference)
        if bit is not None:
            return length - 1 - bytes_after, bit
        low, row = _BACK[difference >> 24]
        difference = (difference ^ row) << 8 | low
    return None


def corrected(message: bytes, stored: int, seed: int = 0) -> tuple[bytes, tuple[int, int]] | None:
    """Return the message with its one wrong bit corrected, and its place; None if not one is wrong.

    If the wrong bit is in the stored checksum, the message is returned unchanged.
    """
    place = wrong_bit(stored, crc32(message, seed), len(message))
    if place is None:
        return None
    byte, bit = place
    if byte >= len(message):
        return message, place
    right = bytearray(message)
    right[byte] ^= 1 << bit
    return bytes(right), place
