"""Id maps and the hashes of HELLO."""

from __future__ import annotations

import hashlib
import itertools
import struct

import pytest

from draftwire.errors import PairMismatchError
from draftwire.wire.identity import IdMap, files_hash, id_map_hash, labelled_sha256


def test_v17_every_map_of_three_ids_is_injective_into_the_vocabulary_or_refused() -> None:
    for size in range(4):
        for ids in itertools.product(range(-1, 4), repeat=size):
            valid = len(set(ids)) == size and all(0 <= entry < 3 for entry in ids)
            if valid:
                assert IdMap(3, ids).ids == ids
                continue
            with pytest.raises(PairMismatchError) as caught:
                IdMap(3, ids)
            assert caught.value.field == "id_map_hash"


def test_hashes_tell_maps_and_vocabularies_apart() -> None:
    maps = [
        IdMap(v, ids)
        for v in (3, 4)
        for n in range(4)
        for ids in itertools.permutations(range(3), n)
    ]
    assert len({entry.hash() for entry in maps}) == len(maps)
    assert IdMap.native(3).hash() == id_map_hash([0, 1, 2], 3)


def test_the_bytes_that_are_hashed() -> None:
    packed = b"draftwire id map v1\0" + struct.pack("<I2i", 9, 5, 7)
    assert IdMap(9, (5, 7)).hash() == hashlib.sha256(packed).digest()
    assert labelled_sha256("a", [b"b", b"c"]) == hashlib.sha256(b"a\0bc").digest()


def test_files_are_framed_and_their_order_does_not_matter() -> None:
    one, two = b"1" * 32, b"2" * 32
    assert files_hash("x", [("a", one), ("b", two)]) == files_hash("x", [("b", two), ("a", one)])
    sets = [
        [("a", one), ("b", two)],
        [("ab", one), ("", two)],
        [("a", two), ("b", one)],
        [("a", one)],
    ]
    assert len({files_hash("x", entry) for entry in sets}) == len(sets)
    assert files_hash("x", sets[0]) != files_hash("y", sets[0])
