"""CRC32C against published values and the bit-by-bit one, through every kind of buffer."""

from __future__ import annotations

import pytest

from draftwire.exact.payload import crc32c as plain_crc32c
from draftwire.wire.checksum import crc32c
from spec.oracle.frames import crc32c as oracle_crc32c

# RFC 3720, appendix B.4
PUBLISHED = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
]


@pytest.mark.parametrize(("data", "checksum"), PUBLISHED)
def test_published_values(data: bytes, checksum: int) -> None:
    assert crc32c(data) == plain_crc32c(data) == oracle_crc32c(data) == checksum


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 8191, 65536, 65537, 140_001])
def test_every_kind_of_buffer_gives_the_same(length: int) -> None:
    data = (bytes(range(251)) * (length // 251 + 1))[:length]
    expected = oracle_crc32c(data)
    shifted = memoryview(bytearray(b"xyz" + data))[3:]
    for buffer in (data, bytearray(data), memoryview(data), shifted, shifted.toreadonly()):
        assert crc32c(buffer) == expected


def test_continues_from_a_first_part() -> None:
    data = bytes(range(256)) * 40
    for cut in (0, 1, 5000, len(data)):
        assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == crc32c(data)


def test_items_of_more_than_a_byte() -> None:
    data = bytes(range(256)) * 40
    assert crc32c(memoryview(data).cast("I")) == crc32c(data)
    assert crc32c(memoryview(bytearray(data)).cast("I")) == crc32c(data)
