"""The incremental prefix against the digest of the whole, and what a model's state still serves."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.session.prefix import Cached, Prefix

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


def whole(tokens: list[int]) -> bytes:
    return hashlib.blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=16).digest()


def test_digest_of_nothing():
    assert Prefix().digest() == whole([])


@settings(max_examples=100, deadline=None)
@given(st.lists(IDS, max_size=5), IDS)
def test_growing_gives_the_digest_of_the_whole(pieces: list[list[int]], ahead: list[int]):
    prefix = Prefix()
    tokens: list[int] = []
    for piece in pieces:
        prefix.extend(piece)
        tokens += piece
        assert prefix.digest() == whole(tokens)
    assert prefix.digest_with(ahead) == whole(tokens + ahead)
    assert prefix.digest() == whole(tokens)
    assert prefix.tokens() == tuple(tokens)
    assert len(prefix) == len(tokens)
    assert prefix.tokens(1, 3) == tuple(tokens[1:3])


def test_an_id_that_is_no_int32_is_refused():
    with pytest.raises(OverflowError):
        Prefix([2**31])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_common(one: list[int], other: list[int]):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert Prefix(one).common(Prefix(other)) == count


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 1), max_size=6),
    st.integers(0, 6),
    st.lists(st.integers(0, 1), max_size=4),
    st.lists(st.integers(0, 1), max_size=8),
)
def test_cached_state_is_kept_exactly_as_far_as_it_is_right(
    old: list[int], length: int, drafts: list[int], new: list[int]
):
    length = min(length, len(old))
    cached = Cached(Prefix(old), length, tuple(drafts))
    state = old[:length] + drafts
    expected = Prefix(state).common(Prefix(new))
    assert cached.common(Prefix(new)) == expected


def test_cached_state_of_a_prefix_that_has_grown():
    prefix = Prefix([1, 2, 3])
    cached = Cached(prefix, 3, (4, 5))
    prefix.extend([4, 6])
    assert cached.common(prefix) == 4
