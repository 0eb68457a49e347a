"""P12 and P14 twice: the vectorised reader and writer of q bytes beside the normative ones."""

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
    ArithmeticRefusalError,
    DraftwireError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
)
from draftwire.exact import payload as plain
from draftwire.exact.counts import Counts
from draftwire.kernels.rows import QRow
from draftwire.rows import payload as fast
from draftwire.rows.loops import _value_code
from draftwire.rows.packed import read_packed
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Reply, ReplyRow
from draftwire.wire.registry import TOTAL, Layout
from draftwire.wire.rows import PackedRows

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


def both_q(q: bytes, layout: Layout, support: int, entries: int, token: int) -> Counts:
    """Decode with both, require the same outcome, and return or raise it."""
    try:
        expected = plain.decode_q(q, layout, V, support, entries, token)
    except ProtocolError as error:
        with pytest.raises(ProtocolError) as caught:
            fast.decode_q(q, layout, V, support, entries, token)
        assert (caught.value.code, caught.value.field is None) == (error.code, error.field is None)
        raise
    row = fast.decode_q(memoryview(q), layout, V, support, entries, token)
    assert row.exact() == expected
    assert (row.ids is None) == (layout == Layout.DENSE)
    return expected


def refused_q(q: bytes, layout: Layout, support: int, entries: int, token: int) -> CODE:
    with pytest.raises(ProtocolError) as caught:
        both_q(q, layout, support, entries, token)
    return caught.value.code


ONE, ZERO, HALF_BITS, TICKET = bits_of(1.0), 0, bits_of(0.5), bits_of(2.0**-24)
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
    "half a ticket": ([4, 5], [bits_of(2.0**-25), ONE], 5, CODE.NON_DYADIC_Q),
    "subnormal": ([4, 5], [1, ONE], 5, CODE.NON_DYADIC_Q),
    "zero entry": ([4, 5], [ONE, ZERO], 4, CODE.ZERO_COUNT_ENTRY),
    "a ticket too few": ([4, 5], [HALF_BITS, bits_of(0.5 - 2.0**-24)], 4, CODE.WRONG_MASS),
    "a ticket too many": ([4, 5, 6], [HALF_BITS, HALF_BITS, TICKET], 4, CODE.WRONG_MASS),
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
    "half a ticket": ({5: bits_of(2.0**-25)}, 0, CODE.NON_DYADIC_Q),
    "between tickets": ({5: bits_of(1.5 * 2.0**-24)}, 0, CODE.NON_DYADIC_Q),
    "just over half": ({0: HALF_BITS, 1: HALF_BITS + 1}, 0, CODE.WRONG_MASS),
    "just under half": ({0: HALF_BITS, 1: HALF_BITS - 1}, 0, CODE.NON_DYADIC_Q),
    "just under one": ({0: ONE - 1}, 0, CODE.WRONG_MASS),
    "just over one": ({0: ONE + 1}, 0, CODE.WRONG_MASS),
    "a ticket too many": ({1: TICKET}, 0, CODE.WRONG_MASS),
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
    """Sums are 64 bits wide: 2^32 tickets too many in all, and no wrap to the right mass."""
    width = 129 + 2**16
    values = np.zeros(width, np.float32)
    values[:128] = 2.0
    values[128] = 1.0
    for count in (128, width - 1):
        values[:count] = 2.0
        q = values.tobytes()
        with pytest.raises(ProtocolError) as caught:
            fast.decode_q(q, Layout.DENSE, width, width, width, 0)
        assert caught.value.code == CODE.WRONG_MASS


@pytest.mark.parametrize("at", range(1, 3))
@pytest.mark.parametrize(("pad_id", "pad_bits"), [(0, 0), (-2, 0), (10, 0), (-1, NEGATIVE_ZERO),
                                                  (-1, TICKET), (-1, NAN)])  # fmt: skip
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


def test_every_number_of_tickets_and_only_those() -> None:
    """All 2^24 + 1 counts are numbers of tickets; beside each, the next binary32 up is one or not
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
        assert _value_code(np.int32(signed)) == expected
    # the whole range at once, in rows of one V each: counts come back as they went
    back = np.empty(TOTAL + 1, np.int32)
    width = 1 << 20
    for begin in range(0, TOTAL + 1, width):
        words = bits[begin : begin + width]
        fast.dense_counts(words, words.view(np.float32), 0, back[begin : begin + width])
    assert np.array_equal(back, counts)


@st.composite
def rows_of_counts(draw: st.DrawFn) -> Counts:
    size = draw(st.integers(1, 5))
    ids = sorted(draw(st.sets(st.integers(0, V - 1), min_size=size, max_size=size)))
    cuts = sorted(draw(st.sets(st.integers(1, TOTAL - 1), min_size=size - 1, max_size=size - 1)))
    edges = [0, *cuts, TOTAL]
    return Counts(V, TOTAL, tuple(ids), tuple(b - a for a, b in itertools.pairwise(edges)))


def reply_of(rows: Sequence[Any], layout: Layout, support: int) -> Reply:
    width = V if layout == Layout.DENSE else support
    return Reply(
        session=1, slot=0, layout=layout, generation=1, round=1, first_position=9,
        prefix_digest=bytes(16), context_version=0, shard_index=0, shard_count=1, shard_begin=0,
        shard_end=V, support=width, rows=tuple(ReplyRow(*row) for row in rows),
    )  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DraftwireError as error:
        return type(error), getattr(error, "code", None)


def decoded_by_both(reply: Reply) -> Any:
    expected = outcome(lambda: plain.decode_reply_rows(reply, V))
    actual = outcome(lambda: tuple(row.exact() for row in fast.decode_reply_rows(reply, V)))
    assert actual == expected
    if reply.layout == Layout.SPARSE and all(len(row.q) == 8 * reply.support for row in reply.rows):
        # What comes off the wire is rows in one piece, which one compiled call reads.
        head = struct.Struct("<IiII")
        body = b"".join(
            head.pack(row.position, row.token, row.entries, row.checksum) + row.q
            for row in reply.rows
        )
        packed = replace(reply, rows=PackedRows(body, 8 * reply.support))
        assert packed == reply
        actual = outcome(lambda: tuple(row.exact() for row in fast.decode_reply_rows(packed, V)))
        assert actual == expected
        if (reply.shard_begin, reply.shard_end) == (0, V):
            assert isinstance(packed.rows, PackedRows)
            read = read_packed(packed.rows, reply.first_position, V)
            assert (read is None) == (expected[:1] == (ProtocolError,))
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
    for dense in (False, True):
        arrays = [QRow.of_counts(row, dense=dense) for row in rows]
        encoded = fast.encode_reply_rows(arrays, tokens, 9, layout, support)
        for ours, normative in zip(encoded, expected, strict=True):
            assert (ours.position, ours.token, ours.entries, ours.checksum) == normative[:4]
            assert bytes(ours.q) == normative.q
    assert decoded_by_both(reply_of(expected, layout, support)) == tuple(rows)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_reply_is_the_same_rows_or_the_same_one_error(data: st.DataObject) -> None:
    """Valid replies with a few fields, words or bits changed, checksums made right or not."""
    layout = data.draw(st.sampled_from([Layout.DENSE, Layout.SPARSE]))
    rows = data.draw(st.lists(rows_of_counts(), min_size=1, max_size=3))
    tokens = [data.draw(st.sampled_from(row.ids)) for row in rows]
    encoded = [list(row) for row in plain.encode_reply_rows(rows, tokens, 9, layout, 5)]
    edges = st.sampled_from(
        [0, 1, ONE, HALF_BITS, TICKET, NAN, INFINITY, NEGATIVE_ZERO, 2**32 - 1, 2**31, V, 4]
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
    reply = reply_of(encoded, layout, 5)
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
    assert len(decoded_by_both(reply_of(rows, layout, 3))) == 2
    rows[1][field] = value
    assert decoded_by_both(reply_of(rows, layout, 3)) == (ProtocolError, code)


def test_every_flipped_bit_of_a_q_fails_its_checksum() -> None:
    for layout in (Layout.DENSE, Layout.SPARSE):
        for bit in range(8 * len(valid_rows(layout)[1][4])):
            rows = valid_rows(layout)
            changed = bytearray(rows[1][4])
            changed[bit // 8] ^= 1 << bit % 8
            rows[1][4] = bytes(changed)
            result = decoded_by_both(reply_of(rows, layout, 3))
            assert result == (ProtocolError, CODE.BAD_Q_CHECKSUM)


def test_ids_only_is_a_point_mass_a_row() -> None:
    rows = [(9, 4, 0, 0, b""), (10, 0, 0, 0, b"")]
    points = decoded_by_both(reply_of(rows, Layout.IDS_ONLY, 0))
    assert points == tuple(Counts(V, TOTAL, (token,), (TOTAL,)) for token in (4, 0))
    for change, code in (
        ((10, V, 0, 0, b""), CODE.ID_OUT_OF_RANGE),
        ((10, 4, 1, 0, b""), CODE.WRONG_SIZE),
        ((10, 4, 0, 1, b""), CODE.BAD_Q_CHECKSUM),
    ):
        reply = reply_of([rows[0], change], Layout.IDS_ONLY, 0)
        assert decoded_by_both(reply) == (ProtocolError, code)


def test_m57_a_row_without_its_q_drops_the_whole_reply() -> None:
    rows = valid_rows(Layout.SPARSE)
    rows[1][2] = 0
    assert decoded_by_both(reply_of(rows, Layout.SPARSE, 3)) == (ProtocolError, CODE.MISSING_Q)
    rows[1][4] = b""
    rows[1][3] = 0
    assert decoded_by_both(reply_of(rows, Layout.SPARSE, 3)) == (ProtocolError, CODE.WRONG_SIZE)


def test_a_shard_alone_is_not_a_q() -> None:
    reply = replace(reply_of(valid_rows(Layout.DENSE), Layout.DENSE, 0), shard_end=V - 1)
    assert decoded_by_both(reply) == (ProtocolError, CODE.WRONG_SHARD)


def test_rows_do_not_share_memory_with_the_receive_buffer() -> None:
    for layout in (Layout.DENSE, Layout.SPARSE):
        rows = valid_rows(layout)
        for row in rows:
            row[4] = memoryview(bytearray(row[4]))
        decoded = fast.decode_reply_rows(reply_of(rows, layout, 3), V)
        before = [row.exact() for row in decoded]
        for row in rows:
            row[4][:] = bytes(len(row[4]))
        assert [row.exact() for row in decoded] == before


def test_counts_may_be_put_into_a_slot() -> None:
    slot = np.full((2, V), -7, np.int32)
    decoded = fast.decode_reply_rows(reply_of(valid_rows(Layout.DENSE), Layout.DENSE, 0), V, slot)
    assert all(np.shares_memory(row.counts, slot) for row in decoded)
    assert slot.sum(axis=1).tolist() == [TOTAL, TOTAL]


@pytest.mark.parametrize("offset", range(4))
def test_any_alignment_is_read_and_written(offset: int) -> None:
    for layout in (Layout.DENSE, Layout.SPARSE):
        encoded = valid_rows(layout)
        q = encoded[0][4]
        store = memoryview(bytearray(len(q) + offset))[offset:]
        row = fast.decode_q(q, layout, V, 3, encoded[0][2], 4)
        assert fast.encode_q(row, layout, 3, store) == crc32c(q)
        assert bytes(store) == q
        assert fast.decode_q(store, layout, V, 3, encoded[0][2], 4).exact() == row.exact()


def test_d7_the_q_sent_and_the_q_received_are_the_same_bytes() -> None:
    """Decoding, reading and encoding again change nothing, on either side."""
    rng = np.random.default_rng(7)
    counts = rng.multinomial(TOTAL, rng.dirichlet(np.full(5000, 0.1))).astype(np.int32)
    row = QRow(5000, None, counts)
    before = counts.tobytes()
    token = int(counts.argmax())
    (sent,) = fast.encode_reply_rows([row], [token], 9, Layout.DENSE, 0)
    back = fast.decode_q(sent.q, Layout.DENSE, 5000, 0, 5000, token)
    assert counts.tobytes() == before == back.counts.tobytes()
    store = memoryview(bytearray(20_000))
    assert fast.encode_q(back, Layout.DENSE, 0, store) == sent.checksum
    assert store == sent.q


def refuse_to_send(call: Callable[[], Any], code: RefusalCode) -> None:
    with pytest.raises(ArithmeticRefusalError) as caught:
        call()
    assert caught.value.code == code


def test_what_is_no_q_is_not_sent() -> None:
    ids, good = np.array([2, 4], np.int32), np.array([HALF, HALF], np.int32)
    out = memoryview(bytearray(24))
    for counts in ([HALF, HALF - 1], [HALF + 1, HALF], [TOTAL, 0], [TOTAL + 1, -1]):
        row = QRow(V, ids, np.array(counts, np.int32))
        refuse_to_send(
            lambda row=row: fast.encode_q(row, Layout.SPARSE, 3, out),
            RefusalCode.INCONSISTENT_ALLOCATION,
        )
    for bad_ids in ([4, 2], [4, 4], [-1, 4], [4, V]):
        row = QRow(V, np.array(bad_ids, np.int32), good)
        refuse_to_send(
            lambda row=row: fast.encode_q(row, Layout.SPARSE, 3, out),
            RefusalCode.INCONSISTENT_ALLOCATION,
        )
    for changes in ({0: TOTAL - 1}, {0: TOTAL + 1, 1: -1}, {0: 2 * TOTAL, 1: -TOTAL}):
        counts = np.zeros(V, np.int32)
        for at, count in changes.items():
            counts[at] = count
        row = QRow(V, None, counts)
        refuse_to_send(
            lambda row=row: fast.encode_q(row, Layout.DENSE, 0, memoryview(bytearray(4 * V))),
            RefusalCode.INCONSISTENT_ALLOCATION,
        )


def test_a_token_without_tickets_and_a_support_too_large_are_not_sent() -> None:
    counts = Counts(V, TOTAL, (2, 4), (HALF, HALF))
    row = QRow.of_counts(counts, dense=False)
    for token in (3, -1, V):
        for encode, value in ((fast.encode_reply_rows, row), (plain.encode_reply_rows, counts)):
            refuse_to_send(
                lambda encode=encode, value=value, token=token: encode(
                    [value], [token], 9, Layout.SPARSE, 3
                ),
                RefusalCode.ZERO_Q,
            )
    refuse_to_send(
        lambda: fast.encode_reply_rows([row], [4], 9, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE
    )
    refuse_to_send(lambda: plain.encode_q(counts, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE)
    other = Counts(V, 16, (2,), (16,))
    refuse_to_send(lambda: plain.encode_q(other, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE)
    with pytest.raises(ValueError, match="another size"):
        fast.encode_q(row, Layout.SPARSE, 3, memoryview(bytearray(23)))
