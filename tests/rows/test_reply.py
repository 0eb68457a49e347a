"""P12 and P14 twice: the compiled reader and writer of rows beside the normative ones."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import (
    DraftwireError,
    ProtocolError,
    ProtocolErrorCode,
    ReleasedError,
)
from draftwire.exact import payload as plain
from draftwire.exact.counts import Counts
from draftwire.kernels import cpu
from draftwire.kernels.rows import Lease, QRow, RowBlock
from draftwire.kernels.words import proposal_words
from draftwire.rows import dense
from draftwire.rows.audit import first_audit_failure
from draftwire.rows.reply import decode_rows, encode_rows
from draftwire.rows.values import value_code
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Reply, ReplyRow, ReplyRows
from draftwire.wire.registry import TOTAL, Layout

CODE = ProtocolErrorCode
HALF = TOTAL // 2
V = 11


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def sparse_q(ids: Sequence[int], values: Sequence[int]) -> bytes:
    """Return sparse q bytes from ids and the bits of the values, pads included by the caller."""
    return struct.pack(f"<{len(ids)}i{len(values)}I", *ids, *values)


def dense_q(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def decode_q(
    q: bytes | memoryview, layout: Layout, vocab_size: int, support: int, entries: int, token: int
) -> QRow:
    """Decode a reply of one row, whose head is right but for what is given."""
    row = ReplyRow(9, token, entries, crc32c(q) if len(q) else 0, q)
    return decode_rows(reply_of([row], layout, support, vocab_size), vocab_size)[0]


def both_q(q: bytes, layout: Layout, support: int, entries: int, token: int) -> Counts:
    """Decode with both, require the same outcome, and return or raise it."""
    try:
        expected = plain.decode_q(q, layout, V, support, entries, token)
    except ProtocolError as error:
        with pytest.raises(ProtocolError) as caught:
            decode_q(q, layout, V, support, entries, token)
        assert (caught.value.code, caught.value.field is None) == (error.code, error.field is None)
        raise
    row = decode_q(memoryview(q), layout, V, support, entries, token)
    assert row.exact() == expected
    assert (row.ids is None) == (layout == Layout.DENSE)
    return expected


def refused_q(q: bytes, layout: Layout, support: int, entries: int, token: int) -> CODE:
    with pytest.raises(ProtocolError) as caught:
        both_q(q, layout, support, entries, token)
    return caught.value.code


ONE, ZERO, HALF_BITS, UNIT = bits_of(1.0), 0, bits_of(0.5), bits_of(2.0**-24)
NEGATIVE_ZERO, NAN, INFINITY = bits_of(-0.0), 0x7FC00000, bits_of(float("inf"))
PAD = [-1], [0]


def three(ids: Sequence[int], values: Sequence[int]) -> tuple[bytes, int]:
    """Return sparse bytes of support 3 with exact pads, and the number of entries."""
    pads = 3 - len(ids)
    return sparse_q([*ids, *[-1] * pads], [*values, *[0] * pads]), len(ids)


SPARSE_REFUSALS: dict[str, tuple[Sequence[int], Sequence[int], int, CODE]] = {
    "duplicate id": ([4, 4], [HALF_BITS, HALF_BITS], 4, CODE.DUPLICATE_ID),
    "duplicate zeros": ([2, 4, 4], [ONE, ZERO, ZERO], 2, CODE.DUPLICATE_ID),
    "duplicate of the first": ([0, 0], [HALF_BITS, HALF_BITS], 0, CODE.DUPLICATE_ID),
    "unsorted": ([5, 4], [HALF_BITS, HALF_BITS], 4, CODE.UNSORTED_SUPPORT),
    "unsorted and duplicate": ([3, 5, 3], [HALF_BITS, HALF_BITS, 0], 3, CODE.UNSORTED_SUPPORT),
    "id V": ([4, 11], [HALF_BITS, HALF_BITS], 4, CODE.ID_OUT_OF_RANGE),
    "id -1 in use": ([-1, 4], [HALF_BITS, HALF_BITS], 4, CODE.ID_OUT_OF_RANGE),
    "id -2": ([-2, 4], [HALF_BITS, HALF_BITS], 4, CODE.ID_OUT_OF_RANGE),
    "id 2^31 - 1": ([4, 2**31 - 1], [HALF_BITS, HALF_BITS], 4, CODE.ID_OUT_OF_RANGE),
    "id -2^31": ([-(2**31), 4], [HALF_BITS, HALF_BITS], 4, CODE.ID_OUT_OF_RANGE),
    "NaN": ([4, 5], [NAN, HALF_BITS], 5, CODE.NON_FINITE_Q),
    "negative NaN": ([4, 5], [NAN | 1 << 31, HALF_BITS], 5, CODE.NON_FINITE_Q),
    "infinity": ([4, 5], [HALF_BITS, INFINITY], 4, CODE.NON_FINITE_Q),
    "minus infinity": ([4, 5], [HALF_BITS, INFINITY | 1 << 31], 4, CODE.NON_FINITE_Q),
    "negative": ([4, 5], [bits_of(-0.5), ONE], 5, CODE.NEGATIVE_Q),
    "negative subnormal": ([4, 5], [1 << 31 | 1, ONE], 5, CODE.NEGATIVE_Q),
    "-0.0": ([4, 5], [ONE, NEGATIVE_ZERO], 4, CODE.NEGATIVE_ZERO_Q),
    "a third": ([4, 5], [bits_of(1 / 3), bits_of(2 / 3)], 4, CODE.NON_DYADIC_Q),
    "half a count": ([4, 5], [bits_of(2.0**-25), ONE], 5, CODE.NON_DYADIC_Q),
    "subnormal": ([4, 5], [1, ONE], 5, CODE.NON_DYADIC_Q),
    "zero entry": ([4, 5], [ONE, ZERO], 4, CODE.ZERO_COUNT_ENTRY),
    "a count too small": ([4, 5], [HALF_BITS, bits_of(0.5 - 2.0**-24)], 4, CODE.WRONG_MASS),
    "a count too large": ([4, 5, 6], [HALF_BITS, HALF_BITS, UNIT], 4, CODE.WRONG_MASS),
    "two": ([4], [bits_of(2.0)], 4, CODE.WRONG_MASS),
    "the largest number": ([4], [0x7F7FFFFF], 4, CODE.WRONG_MASS),
    "three times 2^127": ([4, 5, 6], [bits_of(2.0**127)] * 3, 4, CODE.WRONG_MASS),
    "token outside the support": ([4, 5], [HALF_BITS, HALF_BITS], 6, CODE.ZERO_Q_AT_TOKEN),
    "token -2": ([4], [ONE], -2, CODE.ID_OUT_OF_RANGE),
    "token V": ([4], [ONE], V, CODE.ID_OUT_OF_RANGE),
    "token 2^31 - 1": ([4], [ONE], 2**31 - 1, CODE.ID_OUT_OF_RANGE),
}


@pytest.mark.parametrize("name", SPARSE_REFUSALS)
def test_v19_each_rejection_of_a_sparse_row_has_its_code(name: str) -> None:
    ids, values, token, code = SPARSE_REFUSALS[name]
    q, entries = three(ids, values)
    assert refused_q(q, Layout.SPARSE, 3, entries, token) == code


DENSE_REFUSALS: dict[str, tuple[dict[int, int], int, CODE]] = {
    "NaN": ({1: NAN}, 0, CODE.NON_FINITE_Q),
    "infinity": ({10: INFINITY}, 0, CODE.NON_FINITE_Q),
    "negative": ({1: bits_of(-0.25)}, 0, CODE.NEGATIVE_Q),
    "minus one beside two": ({0: bits_of(2.0), 1: bits_of(-1.0)}, 0, CODE.NEGATIVE_Q),
    "-0.0": ({5: NEGATIVE_ZERO}, 0, CODE.NEGATIVE_ZERO_Q),
    "subnormal": ({5: 1}, 0, CODE.NON_DYADIC_Q),
    "half a count": ({5: bits_of(2.0**-25)}, 0, CODE.NON_DYADIC_Q),
    "between counts": ({5: bits_of(1.5 * 2.0**-24)}, 0, CODE.NON_DYADIC_Q),
    "just over half": ({0: HALF_BITS, 1: HALF_BITS + 1}, 0, CODE.WRONG_MASS),
    "just under half": ({0: HALF_BITS, 1: HALF_BITS - 1}, 0, CODE.NON_DYADIC_Q),
    "just under one": ({0: ONE - 1}, 0, CODE.WRONG_MASS),
    "just over one": ({0: ONE + 1}, 0, CODE.WRONG_MASS),
    "a count too large": ({1: UNIT}, 0, CODE.WRONG_MASS),
    "two": ({0: bits_of(2.0)}, 0, CODE.WRONG_MASS),
    "above two": ({0: bits_of(2.5)}, 0, CODE.WRONG_MASS),
    "a hundred and twenty-eight": ({0: bits_of(128.0)}, 0, CODE.WRONG_MASS),
    "wraps 2^32 to the right sum": ({0: bits_of(257.0)}, 0, CODE.WRONG_MASS),
    "the largest number": ({0: 0x7F7FFFFF}, 0, CODE.WRONG_MASS),
    "nothing": ({0: 0}, 0, CODE.WRONG_MASS),
    "zero at the token": ({}, 3, CODE.ZERO_Q_AT_TOKEN),
    "token -2": ({}, -2, CODE.ID_OUT_OF_RANGE),
    "token V": ({}, V, CODE.ID_OUT_OF_RANGE),
    "the first violation in id order": ({2: NEGATIVE_ZERO, 4: NAN}, 0, CODE.NEGATIVE_ZERO_Q),
}


@pytest.mark.parametrize("name", DENSE_REFUSALS)
def test_v19_each_rejection_of_a_dense_row_has_its_code(name: str) -> None:
    changes, token, code = DENSE_REFUSALS[name]
    values = [ONE] + [0] * (V - 1)
    for at, bits in changes.items():
        values[at] = bits
    assert refused_q(dense_q(values), Layout.DENSE, V, V, token) == code


def test_a_dense_row_of_2_to_16_twos_does_not_overflow() -> None:
    """Sums are 64 bits wide: 2^32 too many in all, and no wrap to the right mass."""
    width = 129 + 2**16
    values = np.zeros(width, np.float32)
    values[:128] = 2.0
    values[128] = 1.0
    for count in (128, width - 1):
        values[:count] = 2.0
        q = values.tobytes()
        with pytest.raises(ProtocolError) as caught:
            decode_q(q, Layout.DENSE, width, width, width, 0)
        assert caught.value.code == CODE.WRONG_MASS


@pytest.mark.parametrize("at", range(1, 3))
@pytest.mark.parametrize(("pad_id", "pad_bits"), [(0, 0), (-2, 0), (10, 0), (-1, NEGATIVE_ZERO),
                                                  (-1, UNIT), (-1, NAN)])  # fmt: skip
def test_pads_are_exact(at: int, pad_id: int, pad_bits: int) -> None:
    ids, values = [4, -1, -1], [ONE, 0, 0]
    ids[at], values[at] = pad_id, pad_bits
    assert refused_q(sparse_q(ids, values), Layout.SPARSE, 3, 1, 4) == CODE.NONZERO_PADDING


@pytest.mark.parametrize(
    ("layout", "support", "entries", "code"),
    [
        (Layout.SPARSE, 3, 0, CODE.MISSING_Q),
        (Layout.SPARSE, 3, 4, CODE.WRONG_SIZE),
        (Layout.SPARSE, 3, 2**32 - 1, CODE.WRONG_SIZE),
        (Layout.DENSE, V, 0, CODE.MISSING_Q),
        (Layout.DENSE, V, V - 1, CODE.MISSING_Q),
        (Layout.DENSE, V, V + 1, CODE.WRONG_SIZE),
        (Layout.IDS_ONLY, 0, 1, CODE.WRONG_SIZE),
    ],
)
def test_m57_a_missing_or_surplus_q_is_refused(
    layout: Layout, support: int, entries: int, code: CODE
) -> None:
    q = bytes({Layout.SPARSE: 24, Layout.DENSE: 4 * V, Layout.IDS_ONLY: 0}[layout])
    assert refused_q(q, layout, support, entries, 4) == code


@pytest.mark.parametrize("layout", [Layout.SPARSE, Layout.DENSE, Layout.IDS_ONLY])
def test_x46_other_sizes_are_refused(layout: Layout) -> None:
    """Half and double width: bf16 and binary64 have no place."""
    due = {Layout.SPARSE: 24, Layout.DENSE: 4 * V, Layout.IDS_ONLY: 0}[layout]
    for size in {0, due - 1, due + 1, due // 2, 2 * due} - {due, -1}:
        assert refused_q(bytes(size), layout, 3, 1, 4) == CODE.WRONG_SIZE


def test_x46_a_byte_swapped_row_is_refused() -> None:
    for count in range(1, 2000):
        values = [count / TOTAL, 1 - count / TOTAL]
        swapped = struct.pack("<3i", 4, 5, -1) + struct.pack(">3f", *values, 0.0)
        assert refused_q(swapped, Layout.SPARSE, 3, 2, 4)


def test_every_count_and_only_those() -> None:
    """All 2^24 + 1 counts are binary32 numbers; beside each, the next binary32 up is one or not
    exactly as the rational says. Every other exponent is covered at its edges.
    """
    counts = np.arange(TOTAL + 1, dtype=np.int64)
    bits = (counts / TOTAL).astype(np.float32).view(np.int32)
    known = set()
    for step in (0, 1, -1):
        for exponent in range(256):
            for fraction in (0, 1, 2, 0x400000, 0x7FFFFE, 0x7FFFFF):
                for sign in (0, 1 << 31):
                    known.add(((exponent << 23 | fraction) + step) & 0x7FFFFFFF | sign)
    for pattern in known:
        signed = pattern - (1 << 32) if pattern >> 31 else pattern
        try:
            plain._count(pattern)
            expected = 0
        except ProtocolError as error:
            expected = int(error.code)
        assert value_code(np.int32(signed)) == expected
    # the whole range, in blocks beside what is left of the mass: counts come back as they went
    back = np.empty(TOTAL + 1, np.int32)
    width = 1 << 20
    for begin in range(0, TOTAL + 1, width):
        words = bits[begin : begin + width]
        dense.read_row(words, words.view(np.float32), 0, True, back[begin : begin + width])
    assert np.array_equal(back, counts)


@st.composite
def rows_of_counts(draw: st.DrawFn) -> Counts:
    size = draw(st.integers(1, 5))
    ids = sorted(draw(st.sets(st.integers(0, V - 1), min_size=size, max_size=size)))
    cuts = sorted(draw(st.sets(st.integers(1, TOTAL - 1), min_size=size - 1, max_size=size - 1)))
    edges = [0, *cuts, TOTAL]
    return Counts(V, TOTAL, tuple(ids), tuple(b - a for a, b in itertools.pairwise(edges)))


def reply_of(rows: Sequence[Any], layout: Layout, support: int, vocab_size: int = V) -> Reply:
    width = vocab_size if layout == Layout.DENSE else support if layout == Layout.SPARSE else 0
    return Reply(
        session=1, slot=0, layout=layout, generation=1, round=1, first_position=9,
        prefix_digest=bytes(16), context_version=0, shard_index=0, shard_count=1, shard_begin=0,
        shard_end=vocab_size, support=width,
        rows=rows if isinstance(rows, ReplyRows) else ReplyRows.of(rows),
    )  # fmt: skip


def of_encoded(rows: Sequence[Any]) -> ReplyRows:
    return ReplyRows.of(ReplyRow(*row) for row in rows)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DraftwireError as error:
        return type(error), getattr(error, "code", None)


def decoded_by_both(reply: Reply) -> Any:
    expected = outcome(lambda: plain.decode_reply_rows(reply, V))
    actual = outcome(lambda: tuple(row.exact() for row in decode_rows(reply, V)))
    assert actual == expected
    return expected


@settings(max_examples=200, deadline=None)
@given(st.lists(rows_of_counts(), min_size=1, max_size=4), st.data())
def test_what_is_encoded_is_equal_in_both_and_comes_back(
    rows: list[Counts], data: st.DataObject
) -> None:
    tokens = [data.draw(st.sampled_from(row.ids)) for row in rows]
    layout = data.draw(st.sampled_from(Layout))
    support = 5 if layout == Layout.SPARSE else 0
    if layout == Layout.IDS_ONLY:
        rows = [Counts(V, TOTAL, (token,), (TOTAL,)) for token in tokens]
    expected = plain.encode_reply_rows(rows, tokens, 9, layout, support)
    for is_dense in (False, True):
        arrays = [QRow.of_counts(row, dense=is_dense) for row in rows]
        encoded = encode_rows(arrays, tokens, 9, layout, support)
        assert encoded == of_encoded(expected)
        assert encoded.tokens == tuple(tokens)
    assert decoded_by_both(reply_of(of_encoded(expected), layout, support)) == tuple(rows)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_reply_is_the_same_rows_or_the_same_one_error(data: st.DataObject) -> None:
    """Valid replies with a few fields, words or bits changed, checksums made right or not."""
    layout = data.draw(st.sampled_from([Layout.DENSE, Layout.SPARSE]))
    rows = data.draw(st.lists(rows_of_counts(), min_size=1, max_size=3))
    tokens = [data.draw(st.sampled_from(row.ids)) for row in rows]
    encoded = [list(row) for row in plain.encode_reply_rows(rows, tokens, 9, layout, 5)]
    edges = st.sampled_from(
        [0, 1, ONE, HALF_BITS, UNIT, NAN, INFINITY, NEGATIVE_ZERO, 2**32 - 1, 2**31, V, 4]
    )
    for row in encoded:
        words = list(struct.unpack(f"<{len(row[4]) // 4}I", row[4]))
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(words) - 1))
            words[at] = data.draw(
                st.one_of(edges, st.integers(0, 2**32 - 1), st.sampled_from(words))
            )
        row[4] = dense_q(words)
        if data.draw(st.integers(0, 9)):
            row[3] = crc32c(row[4])
        if not data.draw(st.integers(0, 9)):
            row[0] += data.draw(st.integers(-1, 1))
        if not data.draw(st.integers(0, 5)):
            row[1] = data.draw(st.sampled_from([-2, -1, 0, 4, V - 1, V, 2**31 - 1]))
        if not data.draw(st.integers(0, 5)):
            row[2] = data.draw(st.sampled_from([0, 1, 2, 5, 6, V - 1, V, V + 1, 2**32 - 1]))
    reply = reply_of(of_encoded(encoded), layout, 5)
    if not data.draw(st.integers(0, 9)):
        reply = replace(reply, shard_end=data.draw(st.sampled_from([0, V - 1, V])))
    decoded_by_both(reply)


def valid_rows(layout: Layout) -> list[list[Any]]:
    rows = [Counts(V, TOTAL, (2, 4), (HALF, HALF)), Counts(V, TOTAL, (0, 10), (1, TOTAL - 1))]
    return [list(row) for row in plain.encode_reply_rows(rows, [4, 0], 9, layout, 3)]


@pytest.mark.parametrize("layout", [Layout.DENSE, Layout.SPARSE])
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        (0, 9, CODE.WRONG_POSITION),
        (0, 11, CODE.WRONG_POSITION),
        (1, -2, CODE.ID_OUT_OF_RANGE),
        (1, V, CODE.ID_OUT_OF_RANGE),
        (1, 3, CODE.ZERO_Q_AT_TOKEN),
        (2, 0, CODE.MISSING_Q),
        (2, 12, CODE.WRONG_SIZE),
        (3, 1, CODE.BAD_Q_CHECKSUM),
    ],
)
def test_the_head_of_a_row(layout: Layout, field: int, value: int, code: CODE) -> None:
    rows = valid_rows(layout)
    assert len(decoded_by_both(reply_of(of_encoded(rows), layout, 3))) == 2
    rows[1][field] = value
    assert decoded_by_both(reply_of(of_encoded(rows), layout, 3)) == (ProtocolError, code)


def test_every_flipped_bit_of_a_q_fails_its_checksum() -> None:
    for layout in (Layout.DENSE, Layout.SPARSE):
        for bit in range(8 * len(valid_rows(layout)[1][4])):
            rows = valid_rows(layout)
            changed = bytearray(rows[1][4])
            changed[bit // 8] ^= 1 << bit % 8
            rows[1][4] = bytes(changed)
            result = decoded_by_both(reply_of(of_encoded(rows), layout, 3))
            assert result == (ProtocolError, CODE.BAD_Q_CHECKSUM)


def test_ids_only_is_a_point_mass_a_row() -> None:
    rows = [(9, 4, 0, 0, b""), (10, 0, 0, 0, b"")]
    points = decoded_by_both(reply_of(of_encoded(rows), Layout.IDS_ONLY, 0))
    assert points == tuple(Counts(V, TOTAL, (token,), (TOTAL,)) for token in (4, 0))
    for change, code in (
        ((10, V, 0, 0, b""), CODE.ID_OUT_OF_RANGE),
        ((10, 4, 1, 0, b""), CODE.WRONG_SIZE),
        ((10, 4, 0, 1, b""), CODE.BAD_Q_CHECKSUM),
    ):
        reply = reply_of(of_encoded([rows[0], change]), Layout.IDS_ONLY, 0)
        assert decoded_by_both(reply) == (ProtocolError, code)


def test_m57_a_row_without_its_q_drops_the_whole_reply() -> None:
    rows = valid_rows(Layout.SPARSE)
    rows[1][2] = 0
    reply = reply_of(of_encoded(rows), Layout.SPARSE, 3)
    assert decoded_by_both(reply) == (ProtocolError, CODE.MISSING_Q)
    empty = of_encoded([[9, 4, 0, 0, b""], [10, 0, 0, 0, b""]])
    assert decoded_by_both(replace(reply, rows=empty)) == (ProtocolError, CODE.WRONG_SIZE)
    rows[1][3:] = 0, b""
    with pytest.raises(ValueError, match="in one reply"):
        of_encoded(rows)


def test_a_shard_alone_is_not_a_q() -> None:
    reply = reply_of(of_encoded(valid_rows(Layout.DENSE)), Layout.DENSE, 0)
    reply = replace(reply, shard_end=V - 1)
    assert decoded_by_both(reply) == (ProtocolError, CODE.WRONG_SHARD)


def lying(layout: Layout, offset: int = 0) -> Reply:
    """A valid reply whose rows lie in memory that may be written, at any place in a word."""
    rows = of_encoded(valid_rows(layout))
    store = memoryview(bytearray(offset + len(rows.body)))[offset:]
    store[:] = rows.body
    return reply_of(ReplyRows(store, rows.q_bytes), layout, 3)


@pytest.mark.parametrize("layout", [Layout.DENSE, Layout.SPARSE])
def test_rows_do_not_share_memory_with_the_receive_buffer(layout: Layout) -> None:
    reply = lying(layout)
    decoded = decode_rows(reply, V)
    before = [row.exact() for row in decoded]
    store = reply.rows.body
    assert isinstance(store, memoryview)
    store[:] = bytes(len(store))
    assert [row.exact() for row in decoded] == before


def test_counts_may_be_put_into_a_slot_and_are_read_until_its_lease_is_over() -> None:
    slot, lease = np.full((2, V), -7, np.int32), Lease()
    decoded = decode_rows(lying(Layout.DENSE), V, slot, lease)
    rows = tuple(decoded)
    assert all(np.shares_memory(row.counts, slot) for row in rows)
    assert slot.sum(axis=1).tolist() == [TOTAL, TOTAL]
    lease.end()
    for row in (*rows, *decoded):
        for read in (lambda row=row: row.counts, row.exact, lambda row=row: row.of(4)):
            with pytest.raises(ReleasedError):
                read()
    own = decode_rows(lying(Layout.SPARSE), V, slot, lease)
    assert own[0].of(4) == HALF


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("layout", [Layout.DENSE, Layout.SPARSE])
def test_any_alignment_is_read(layout: Layout, offset: int) -> None:
    reply = lying(layout, offset)
    assert [row.exact() for row in decode_rows(reply, V)] == list(plain.decode_reply_rows(reply, V))


def test_d7_the_q_sent_and_the_q_received_are_the_same_bytes() -> None:
    """Decoding, reading and encoding again change nothing, on either side."""
    rng = np.random.default_rng(7)
    counts = rng.multinomial(TOTAL, rng.dirichlet(np.full(5000, 0.1))).astype(np.int32)
    row = QRow(5000, None, counts)
    before = counts.tobytes()
    token = int(counts.argmax())
    sent = encode_rows([row], [token], 9, Layout.DENSE, 0)
    (back,) = decode_rows(reply_of(sent, Layout.DENSE, 0, 5000), 5000)
    assert counts.tobytes() == before == back.counts.tobytes()
    assert encode_rows([back], [token], 9, Layout.DENSE, 0) == sent


@pytest.mark.parametrize("layout", [Layout.DENSE, Layout.SPARSE])
def test_the_audit_of_a_reply_is_that_of_each_row(layout: Layout) -> None:
    """A22 in one call: the first token that its word does not draw."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        rows, depth = [], int(rng.integers(1, 6))
        for _ in range(depth):
            ids = np.sort(rng.choice(V, int(rng.integers(1, 6)), replace=False)).astype(np.int32)
            counts = rng.multinomial(TOTAL - len(ids), rng.dirichlet(np.ones(len(ids)))) + 1
            rows.append(QRow(V, ids, counts.astype(np.int32)))
        uniform24 = proposal_words(int(rng.integers(1 << 62)), 1, 1, 9, depth)
        drawn = [cpu.draw(row, int(word)) for row, word in zip(rows, uniform24, strict=True)]
        sent = encode_rows(rows, drawn, 9, layout, 5)
        block = decode_rows(reply_of(sent, layout, 5), V)
        assert first_audit_failure(block, drawn, uniform24) is None
        others = [int(rng.choice(row.ids)) for row in rows]  # type: ignore[arg-type]
        wrong = [index for index in range(depth) if others[index] != drawn[index]]
        assert first_audit_failure(block, others, uniform24) == (wrong[0] if wrong else None)


def test_a_block_is_a_sequence_of_rows() -> None:
    counts = [Counts(V, TOTAL, (2, 4), (HALF, HALF)), Counts(V, TOTAL, (7,), (TOTAL,))]
    for is_dense in (False, True):
        rows = [QRow.of_counts(each, dense=is_dense) for each in counts]
        layout = Layout.DENSE if is_dense else Layout.SPARSE
        block = decode_rows(reply_of(encode_rows(rows, [4, 7], 9, layout, 3), layout, 3), V)
        assert isinstance(block, RowBlock)
        assert [row.exact() for row in block] == counts
        assert [row.exact() for row in block[1:]] == counts[1:]
        assert block[-1].exact() == counts[1]
        for outside in (2, -3):
            with pytest.raises(IndexError):
                block[outside]
