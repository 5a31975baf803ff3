"""Which single bit, turned round, explains a wrong checksum.

A CRC is linear: the difference between the checksum that is stored and the one that is computed
depends only on the bits that differ, not on the data. One wrong bit at distance d from the end
leaves the same difference wherever it happens, and up to lengths far beyond ours each distance
leaves another one. So walking back from the difference, byte by byte, tells the place, without
the right data at hand. Several wrong bits pass for a single one with a chance of about the number
of bits in 2^32, so this is used to explain and to report, never to serve what it mended.
"""

from __future__ import annotations

from zlib import crc32

SEARCH_BYTES_MAX = 16 << 20
_POLYNOMIAL = 0xEDB88320


def _table() -> list[int]:
    """The CRC's table: what eight steps make of each low byte."""
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return rows


_TABLE = _table()
_BACK = {row >> 24: (low, row) for low, row in enumerate(_TABLE)}  # by high byte: all differ
_ONE_BIT = {_TABLE[1 << bit]: bit for bit in range(8)}  # the difference right behind the byte


def wrong_bit(stored: int, computed: int, length: int) -> tuple[int, int] | None:
    """(byte, bit) of a message of `length` bytes, or None if no single bit explains it.

    A byte at or after `length` means the stored checksum itself: its byte number byte - length.
    """
    difference = stored ^ computed
    if difference.bit_count() == 1:
        at = difference.bit_length() - 1
        return length + at // 8, at % 8
    if not difference:
        return None
    for behind in range(min(length, SEARCH_BYTES_MAX)):
        bit = _ONE_BIT.get(difference)
        if bit is not None:
            return length - 1 - behind, bit
        low, row = _BACK[difference >> 24]
        difference = (difference ^ row) << 8 | low
    return None


def corrected(message: bytes, stored: int, seed: int = 0) -> tuple[bytes, tuple[int, int]] | None:
    """The message with its one wrong bit put right, and where that was; None if it is not one.

    With a wrong bit in the stored checksum the message comes back as it is.
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
