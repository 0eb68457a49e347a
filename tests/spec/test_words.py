"""The oracle's generator against published answers, and its decisions against ``exact``."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction as F
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ArithmeticRefusalError
from draftwire.exact import decide, verify
from draftwire.exact.counts import Counts
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey, link_key
from spec.oracle import decisions
from spec.oracle import words as oracle
from spec.oracle.arithmetic import Refused

FULL = 0xFFFFFFFF


def test_published_answers_of_philox_4x32_10() -> None:
    # Known-answer vectors published with the generator (Random123, kat_vectors).
    assert oracle.philox((0, 0, 0, 0), (0, 0)) == (
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    )
    assert oracle.philox((FULL, FULL, FULL, FULL), (FULL, FULL)) == (
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    )
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert oracle.philox(pi, (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )


@given(
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**64 - 1),
    st.tuples(*[st.integers(0, FULL)] * 3),
    st.sampled_from(Domain),
    st.integers(1, 32),
)
def test_keys_and_words_are_exacts(
    seed: int, stream: int, where: tuple[int, int, int], domain: Domain, bits: int
) -> None:
    request = RequestKey(seed, stream)
    key = oracle.key_of(seed, stream, domain)
    assert key == request.key(domain)
    theirs = KeyedWords(request, bits).words(Address(*where, domain))
    ours = oracle.words_at(key, *where, bits)
    assert list(islice(ours, 6)) == list(islice(theirs, 6))


@given(st.integers(1, 10**9), st.integers(1, 32), st.integers(0, 2**64 - 1))
def test_below_is_exacts(bound: int, bits: int, seed: int) -> None:
    ours = oracle.below(bound, oracle.words_at((seed & FULL, seed >> 32), 1, 2, 3, bits), bits)
    theirs = decide.below(bound, oracle.words_at((seed & FULL, seed >> 32), 1, 2, 3, bits), bits)
    assert ours == theirs < bound


@given(
    st.lists(st.integers(0, 1000), max_size=6),
    st.integers(1000, 2000),
    st.integers(1, 8),
    st.integers(0, 2**64 - 1),
)
def test_locate_is_exacts(edges: list[int], denominator: int, bits: int, seed: int) -> None:
    edges.sort()
    key = (seed & FULL, seed >> 32)
    fractions = [F(edge, denominator) for edge in edges]
    ours = oracle.locate(fractions, oracle.words_at(key, 1, 2, 3, bits), bits)
    theirs = decide.locate(edges, denominator, oracle.words_at(key, 1, 2, 3, bits), bits)
    assert ours == theirs


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rounds_are_exacts(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    depth = data.draw(st.integers(1, 4))
    bits = data.draw(st.sampled_from([1, 3, 8, 24]))
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    rows = [data.draw(row) for _ in range(depth + 1)]
    counts = [data.draw(row) for _ in range(depth)]
    seed = data.draw(st.integers(0, 2**32))

    def words(position: int, domain: int) -> object:
        return oracle.words_at(oracle.key_of(seed, 0, domain), 1, 1, position, bits)

    source = KeyedWords(RequestKey(seed), bits)
    drafts = []
    proposal = []
    for i, dense in enumerate(counts):
        token = decisions.draw(dense, words(i, oracle.PROPOSAL), bits)  # type: ignore[arg-type]
        ids = tuple(v for v in range(size) if dense[v])
        theirs = Counts(size, sum(dense), ids, tuple(dense[v] for v in ids))
        address = Address(1, 1, i, Domain.PROPOSAL)
        assert verify.draw(theirs, source.words(address), bits) == token
        drafts.append(token)
        proposal.append((token, theirs))
    ours = decisions.verify(
        [[F(a) for a in p] for p in rows],
        drafts,
        counts,
        words,  # type: ignore[arg-type]
        0,
        bits,
    )
    found = verify.verify(
        rows, proposal, source, generation=1, round=1, first_position=0, bits=bits
    )
    assert (found.accepted, found.token, found.outcome) == (
        ours.accepted,
        ours.token,
        ours.outcome,
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_given_as_mappings_are_decided_as_whole_rows(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 6))
    depth = data.draw(st.integers(1, 3))
    bits = data.draw(st.sampled_from([1, 3, 8, 24]))
    row = st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any)
    rows = [[F(a) for a in data.draw(row)] for _ in range(depth + 1)]
    counts = [data.draw(row) for _ in range(depth)]
    seed = data.draw(st.integers(0, 2**32))
    named = [{v: a for v, a in enumerate(p) if a} for p in rows]
    padded = [dict(enumerate(q)) | {1 << 20: 0} for q in counts]  # zeros may be named as well

    def words(position: int, domain: int) -> Iterator[int]:
        return oracle.words_at(oracle.key_of(seed, 0, domain), 1, 1, position, bits)

    drafts = [decisions.draw(q, words(i, oracle.PROPOSAL), bits) for i, q in enumerate(counts)]
    for i, (token, q) in enumerate(zip(drafts, padded, strict=True)):
        assert decisions.audit(q, token, words, i, bits)
        assert decisions.sample(named[i], words(i, oracle.BONUS), bits) == decisions.sample(
            rows[i], words(i, oracle.BONUS), bits
        )
    whole = decisions.verify(rows, drafts, counts, words, 0, bits)
    assert decisions.verify(named, drafts, padded, words, 0, bits) == whole
    assert decisions.verify(named, drafts, counts, words, 0, bits) == whole


def test_a_draft_that_a_mapping_does_not_name_is_refused() -> None:
    def words(position: int, domain: int) -> Iterator[int]:
        return iter([0])

    with pytest.raises(Refused, match="ZERO_Q"):
        decisions.verify([{7: F(1)}, {7: F(1)}], [129_000], [{7: 1}], words, 0)
    with pytest.raises(Refused, match="ZERO_Q"):
        decisions.verify([{7: F(1)}, {7: F(1)}], [7], [{9: 1}], words, 0)


@given(st.integers(0, (1 << 64) - 1))
def test_link_keys_are_the_oracles(key: int) -> None:
    assert link_key(key) == oracle.link_key_of(key)


def test_a_link_key_is_pinned_and_no_key_of_more_than_64_bits_has_one() -> None:
    assert link_key(0) == 0x03135044D499C72E
    for wrong in (-1, 1 << 64):
        with pytest.raises(ArithmeticRefusalError):
            link_key(wrong)
