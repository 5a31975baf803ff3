"""The checksum is zlib's, whoever computes it."""

from __future__ import annotations

import sys
import zlib
from random import Random
from types import SimpleNamespace

import pytest

from myqueue import checksum


def test_it_is_zlibs_for_every_length_start_and_place() -> None:
    random = Random(7)
    data = random.randbytes(300_000)
    for size in (0, 1, 3, 15, 16, 17, 100, 5119, 5120, 5121, 65_536, 262_144):
        for at in (0, 1, 7):
            part = memoryview(data)[at : at + size]
            for start in (0, 1, 0xFFFFFFFF, random.getrandbits(32)):
                assert checksum.crc32(part, start) == zlib.crc32(part, start)
    assert checksum.crc32(bytearray(data)) == zlib.crc32(data)
    halves = checksum.crc32(data[1000:], checksum.crc32(data[:1000]))
    assert halves == zlib.crc32(data)


def test_the_fast_one_is_used_where_it_is_installed() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert checksum.crc32 is isal_zlib.crc32


@pytest.mark.parametrize(
    "module", [None, SimpleNamespace(crc32=lambda data, start=0: zlib.crc32(data))]
)
def test_zlib_serves_where_the_fast_one_is_missing_or_wrong(
    module: SimpleNamespace | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", module)
    assert checksum._fastest() is zlib.crc32
