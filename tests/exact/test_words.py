"""A13: known answers of the generator, and an address that decides everything."""

import hashlib
from itertools import islice

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import counts, quantise, words
from draftwire.exact.words import (
    Address,
    Domain,
    KeyedWords,
    ProposalWords,
    RequestKey,
    philox4x32,
)
from draftwire.wire import registry

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "lanes"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_published_answers_of_philox(counter, key, lanes):
    assert philox4x32(counter, key) == lanes


def test_the_constants_are_those_of_the_wire():
    assert counts.TOTAL == registry.TOTAL
    assert quantise.WEIGHT_BITS == registry.WEIGHT_BITS
    assert words.WORD_BITS == registry.WORD_BITS
    assert quantise.MIN_TEMPERATURE == registry.MIN_TEMPERATURE
    assert quantise.MAX_TEMPERATURE == registry.MAX_TEMPERATURE


def test_the_key_of_a_domain_is_the_hash_of_seed_stream_and_domain():
    request = RequestKey(seed=(1 << 127) + 5, stream=77)
    for domain in Domain:
        text = (
            b"draftwire key v1"
            + ((1 << 127) + 5).to_bytes(16, "little")
            + (77).to_bytes(8, "little")
            + domain.value.to_bytes(4, "little")
        )
        digest = hashlib.sha256(text).digest()
        low, high = request.key(domain)
        assert low.to_bytes(4, "little") + high.to_bytes(4, "little") == digest[:8]
    assert request.proposal_key.to_bytes(8, "little") == (
        request.key(Domain.PROPOSAL)[0].to_bytes(4, "little")
        + request.key(Domain.PROPOSAL)[1].to_bytes(4, "little")
    )


@pytest.mark.parametrize("bits", [1, 3, 24, 32])
def test_words_are_the_upper_bits_of_the_lanes_in_order(bits):
    request = RequestKey(3, 4)
    address = Address(generation=9, round=8, position=7, domain=Domain.BONUS)
    expected = [
        lane >> (32 - bits)
        for block in range(3)
        for lane in philox4x32((block, 7, 8, 9), request.key(Domain.BONUS))
    ]
    assert list(islice(KeyedWords(request, bits).words(address), 12)) == expected


def test_words_do_not_depend_on_calls_before():
    source = KeyedWords(RequestKey(1))
    address = Address(1, 2, 3, Domain.ACCEPTANCE)
    first = list(islice(source.words(address), 9))
    next(source.words(Address(1, 2, 4, Domain.ACCEPTANCE)))
    assert list(islice(source.words(address), 9)) == first


def test_every_part_of_an_address_and_of_the_key_changes_the_words():
    seen = set()
    for seed, stream in ((0, 0), (0, 1), (1, 0), (1 << 64, 0)):
        for generation, round_, position in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)):
            for domain in Domain:
                address = Address(generation, round_, position, domain)
                seen.add(tuple(islice(KeyedWords(RequestKey(seed, stream)).words(address), 4)))
    assert len(seen) == 4 * 4 * 5


def test_the_proposal_key_gives_the_proposal_words_and_no_others():
    request = RequestKey(11, 12)
    drafter = ProposalWords(request.proposal_key)
    address = Address(1, 2, 3, Domain.PROPOSAL)
    ours = KeyedWords(request).words(address)
    assert list(islice(drafter.words(address), 9)) == list(islice(ours, 9))
    for domain in set(Domain) - {Domain.PROPOSAL}:
        with pytest.raises(ArithmeticRefusalError) as refusal:
            drafter.words(Address(1, 2, 3, domain))
        assert refusal.value.code is RefusalCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    "make",
    [
        lambda: RequestKey(-1),
        lambda: RequestKey(1 << 128),
        lambda: RequestKey(0, 1 << 64),
        lambda: RequestKey(0, -1),
        lambda: ProposalWords(1 << 64),
        lambda: KeyedWords(RequestKey(0), bits=0),
        lambda: KeyedWords(RequestKey(0), bits=33),
        lambda: KeyedWords(RequestKey(0)).words(Address(1 << 32, 1, 1, Domain.BONUS)),
        lambda: KeyedWords(RequestKey(0)).words(Address(1, -1, 1, Domain.BONUS)),
        lambda: KeyedWords(RequestKey(0)).words(Address(1, 1, 1 << 32, Domain.BONUS)),
    ],
)
def test_numbers_outside_their_width_are_refused(make):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        make()
    assert refusal.value.code is RefusalCode.OUT_OF_RANGE
