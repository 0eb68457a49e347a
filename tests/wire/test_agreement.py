"""P6 to P8: what HELLO agrees, and the field named in every refusal."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest

from draftwire.errors import PairMismatchError, ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import (
    Agreed,
    agree,
    answer,
    bounds,
    largest_reply_bytes,
    reply_bytes,
    require_carried,
    step_bytes,
    version_of,
)
from draftwire.wire.codec import decode, encode
from draftwire.wire.frames import FrameReader
from draftwire.wire.identity import IdMap
from draftwire.wire.messages import Hello, ProposalPolicy
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Adaptation,
    HiddenDtype,
    Layout,
    LayoutSet,
    MessageType,
    Role,
    WireVersion,
)
from testing.harness.messages import AGREED, DRAFTER, VERIFIER, payload_of

OTHER_HASH = b"\x01" * 32


def refusal(mine: Hello, theirs: Hello) -> str:
    """Return the field that the refusal of a pair of HELLOs names."""
    with pytest.raises(ProtocolError) as caught:
        agree(mine, theirs)
    assert caught.value.code == ProtocolErrorCode.HELLO_REFUSED
    assert caught.value.field is not None
    return caught.value.field


def both_ways(verifier: Hello, drafter: Hello) -> Agreed:
    """Agree as the drafter does, answer, and agree as the verifier does; both must be the same."""
    agreed = agree(drafter, verifier)
    answered = answer(drafter, agreed)
    back = decode(MessageType.HELLO, agreed.version, memoryview(payload_of(answered)), None)
    assert back == answered
    assert agree(verifier, answered) == agreed
    return agreed


def test_both_sides_agree_the_same() -> None:
    agreed = both_ways(VERIFIER, DRAFTER)
    assert agreed.version == WireVersion.V2
    assert agreed.adaptation == Adaptation.NATIVE
    assert agreed.draft_identity == DRAFTER.draft_identity
    assert agreed.target_identity == VERIFIER.target_identity


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 10),
        ("q_semantic", "dyadic16-standard-v1"),
        ("verifier_semantic", "typical-acceptance"),
        ("rng_abi", "mt19937"),
        ("precision", "fp16le"),
        ("id_map_hash", OTHER_HASH),
        ("tokenizer_hash", OTHER_HASH),
        ("shard_count", 2),
        ("hidden_dtype", HiddenDtype.FLOAT32),
        ("hidden_width", 4),
    ],
)
def test_x43_what_must_be_equal_is_refused_by_name(field: str, value: Any) -> None:
    changed: dict[str, Any] = {field: value}
    if field == "vocab_size":
        changed["max_support"] = 5
    assert refusal(DRAFTER, replace(VERIFIER, **changed)) == field
    assert refusal(VERIFIER, replace(DRAFTER, **changed)) == field


@pytest.mark.parametrize("field", ["draft_identity", "target_identity"])
def test_x43_another_model_revision_is_refused_by_name(field: str) -> None:
    verifier, drafter = (
        replace(VERIFIER, **{field: b"a" * 32}),
        replace(DRAFTER, **{field: b"b" * 32}),
    )
    assert refusal(drafter, verifier) == field
    assert refusal(verifier, drafter) == field
    for some, any_of in ((verifier, replace(drafter, **{field: bytes(32)})),):
        assert getattr(both_ways(some, any_of), field) == b"a" * 32
    assert getattr(both_ways(replace(verifier, **{field: bytes(32)}), drafter), field) == b"b" * 32


def test_x43_another_adaptation_is_refused_unless_one_side_says_any() -> None:
    adapted = replace(VERIFIER, adaptation=Adaptation.ADAPTED)
    assert refusal(DRAFTER, adapted) == "adaptation"
    either = itertools.product(Adaptation, Adaptation)
    for one, other in either:
        pair = replace(VERIFIER, adaptation=one), replace(DRAFTER, adaptation=other)
        if one == other or Adaptation.ANY in (one, other):
            assert both_ways(*pair).adaptation == max(one, other)


def test_x43_a_depth_that_was_not_agreed_is_refused_by_name() -> None:
    """Limits are agreed as the smaller; a verifier whose own policy no longer fits says so."""
    agreed = both_ways(VERIFIER, replace(DRAFTER, max_depth=2, max_support=3))
    assert (agreed.max_depth, agreed.max_support) == (2, 3)
    require_carried(agreed, ProposalPolicy(Layout.SPARSE, 2, 1.0, support=3))
    sparse = replace(agreed, layouts=LayoutSet.SPARSE)
    for limits, policy, field in (
        (agreed, ProposalPolicy(Layout.SPARSE, 3, 1.0, support=3), "max_depth"),
        (agreed, ProposalPolicy(Layout.SPARSE, 2, 1.0, support=4), "max_support"),
        (sparse, ProposalPolicy(Layout.DENSE, 2, 1.0), "layouts"),
        (agreed, ProposalPolicy(Layout.IDS_ONLY, 2, 0.0), "layouts"),
        (replace(agreed, max_context=2), ProposalPolicy(Layout.DENSE, 2, 1.0), "max_context"),
    ):
        with pytest.raises(ProtocolError) as caught:
            require_carried(limits, policy)
        assert caught.value.field == field
        assert caught.value.code == ProtocolErrorCode.HELLO_REFUSED


SMALLER = {
    "max_sessions": 7,
    "max_slots": 2,
    "max_depth": 3,
    "max_support": 4,
    "max_context": 31,
    "max_step_bytes": 500,
    "max_reply_bytes": 1000,
    "hidden_rows": 1,
}


@pytest.mark.parametrize("field", SMALLER)
def test_limits_are_agreed_as_the_smaller_and_an_answer_cannot_raise_them(field: str) -> None:
    less: dict[str, Any] = {field: SMALLER[field]}
    for pair in ((replace(VERIFIER, **less), DRAFTER), (VERIFIER, replace(DRAFTER, **less))):
        assert getattr(both_ways(*pair), field) == SMALLER[field]
    assert refusal(replace(VERIFIER, **less), DRAFTER) == field


def test_layouts_are_the_intersection_and_never_empty() -> None:
    sets = [LayoutSet.DENSE, LayoutSet.SPARSE, LayoutSet.DENSE | LayoutSet.SPARSE]
    for one, other in itertools.product([*sets, LayoutSet.IDS_ONLY], repeat=2):
        pair = replace(VERIFIER, layouts=one), replace(DRAFTER, layouts=other)
        if one & other:
            assert both_ways(*pair).layouts == one & other
        else:
            assert refusal(pair[1], pair[0]) == refusal(*pair) == "layouts"
    more = replace(VERIFIER, layouts=LayoutSet.DENSE), DRAFTER
    assert refusal(*more) == "layouts"


def test_versions_follow_from_layouts_and_are_never_mixed() -> None:
    assert version_of(LayoutSet.IDS_ONLY) == WireVersion.V1
    assert version_of(LayoutSet.DENSE | LayoutSet.SPARSE) == WireVersion.V2
    for layouts in (LayoutSet(0), LayoutSet.IDS_ONLY | LayoutSet.DENSE):
        with pytest.raises(ProtocolError) as caught:
            version_of(layouts)
        assert caught.value.code == ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT


def test_two_of_one_role_are_refused() -> None:
    assert refusal(VERIFIER, VERIFIER) == refusal(DRAFTER, DRAFTER) == "role"


def test_hidden_rows_agreed_to_none_need_no_common_shape() -> None:
    none = replace(DRAFTER, hidden_rows=0, hidden_dtype=HiddenDtype.NONE, hidden_width=0)
    agreed = both_ways(VERIFIER, none)
    assert (agreed.hidden_rows, agreed.hidden_dtype, agreed.hidden_width) == (
        0,
        HiddenDtype.NONE,
        0,
    )
    assert agreed.hidden_row_bytes == 0
    assert AGREED.hidden_row_bytes == 6


def test_v17_an_id_map_outside_the_vocabulary_or_another_one_is_refused() -> None:
    with pytest.raises(PairMismatchError) as caught:
        IdMap(11, [*range(10), 11])
    assert caught.value.field == "id_map_hash"
    native = replace(VERIFIER, id_map_hash=IdMap.native(11).hash())
    turned = replace(DRAFTER, id_map_hash=IdMap(11, range(10, -1, -1)).hash())
    assert refusal(turned, native) == "id_map_hash"


def test_v18_paddings_do_not_matter_the_real_vocabulary_is_agreed() -> None:
    """Draft padded to 151936, target to 152064: both say the real 151669, or are refused."""
    real = 151_669
    assert IdMap.native(real).hash() not in (IdMap.native(n).hash() for n in (151_936, 152_064))
    roomy: dict[str, Any] = {"max_reply_bytes": 1 << 24, "layouts": LayoutSet.DENSE}
    pair = replace(VERIFIER, vocab_size=real, **roomy), replace(DRAFTER, vocab_size=real, **roomy)
    agreed = both_ways(*pair)
    assert agreed.vocab_size == real
    assert reply_bytes(Layout.DENSE, agreed.vocab_size, 1, 0) == 64 + 16 + 4 * real
    assert refusal(replace(pair[1], vocab_size=151_936), pair[0]) == "vocab_size"


def test_x45_a_limit_that_cannot_carry_its_replies_is_refused_before_allocation() -> None:
    """Dense, V = 151936, K = 8, eight sessions: about 39 MB a round."""
    big = {"vocab_size": 151_936, "max_depth": 8, "layouts": LayoutSet.DENSE, "max_slots": 8}
    need = reply_bytes(Layout.DENSE, 151_936, 8, 0)
    assert 8 * need == 38_895_616 + 8 * (64 + 8 * 16)
    enough = [replace(hello, **big, max_reply_bytes=need) for hello in (VERIFIER, DRAFTER)]
    assert both_ways(*enough).max_reply_bytes == need
    short = replace(enough[1], max_reply_bytes=need - 1)
    reader = FrameReader(bounds(None))
    capacity = reader.capacity
    assert refusal(short, enough[0]) == "max_reply_bytes"
    assert refusal(enough[0], short) == "max_reply_bytes"
    assert reader.capacity == capacity
    reader.bounds = bounds(both_ways(*enough), receiver=Role.VERIFIER)
    assert reader.capacity >= need + HEADER_BYTES + TRAILER_BYTES


def test_p8_a_step_that_does_not_fit_is_refused_by_name() -> None:
    need = step_bytes(32, 2, 6)
    assert need == 96 + 4 * 32 + 2 * 6
    both_ways(replace(VERIFIER, max_step_bytes=need), DRAFTER)
    assert refusal(DRAFTER, replace(VERIFIER, max_step_bytes=need - 1)) == "max_step_bytes"


def test_p8_needs_a_support_for_sparse_and_room_for_a_proposal() -> None:
    assert refusal(DRAFTER, replace(VERIFIER, max_support=0)) == "max_support"
    assert refusal(DRAFTER, replace(VERIFIER, max_context=4)) == "max_context"
    both_ways(replace(VERIFIER, max_support=0, layouts=LayoutSet.DENSE), DRAFTER)


def test_e51_the_smaller_context_is_agreed() -> None:
    agreed = both_ways(
        replace(VERIFIER, max_context=4096, max_step_bytes=1 << 16),
        replace(DRAFTER, max_context=512, max_step_bytes=1 << 14),
    )
    assert agreed.max_context == 512


@pytest.mark.parametrize(
    ("layout", "vocab_size", "support", "q"),
    [
        (Layout.DENSE, 129_280, 0, 2_585_600),
        (Layout.SPARSE, 129_280, 16, 640),
        (Layout.SPARSE, 129_280, 32, 1_280),
        (Layout.SPARSE, 129_280, 64, 2_560),
        (Layout.SPARSE, 129_280, 256, 10_240),
        (Layout.DENSE, 64_640, 0, 1_292_800),
        (Layout.IDS_ONLY, 129_280, 0, 0),
    ],
)
def test_reply_sizes_are_the_origin_s_table_and_the_heads(
    layout: Layout, vocab_size: int, support: int, q: int
) -> None:
    assert reply_bytes(layout, vocab_size, 5, support) == 64 + 5 * 16 + q


def test_the_largest_reply_is_that_of_the_largest_layout() -> None:
    both = LayoutSet.DENSE | LayoutSet.SPARSE
    assert largest_reply_bytes(both, 100, 2, 80) == reply_bytes(Layout.SPARSE, 100, 2, 80)
    assert largest_reply_bytes(both, 100, 2, 10) == reply_bytes(Layout.DENSE, 100, 2, 10)
    assert largest_reply_bytes(LayoutSet.SPARSE, 10, 2, 80) == reply_bytes(Layout.SPARSE, 10, 2, 10)


def test_bounds_are_exact_for_fixed_payloads_and_agreed_for_the_others() -> None:
    limits = bounds(AGREED)
    assert limits.versions == frozenset({WireVersion.V2})
    assert limits.payload[MessageType.STEP] == (96, AGREED.max_step_bytes)
    assert limits.payload[MessageType.REPLY] == (64, AGREED.max_reply_bytes)
    for kind, (least, most) in limits.payload.items():
        variable = (MessageType.HELLO, MessageType.STEP, MessageType.REPLY)
        assert least == most or kind in variable
    assert limits.largest_frame == AGREED.max_reply_bytes + HEADER_BYTES + TRAILER_BYTES


def test_every_limit_of_hello_is_in_what_is_agreed() -> None:
    names = {field.name for field in fields(Agreed)}
    assert names == {field.name for field in fields(Hello)} - {"role"}
    least, most = bounds(None, receiver=Role.DRAFTER).payload[MessageType.HELLO]
    assert len(b"".join(encode(VERIFIER))) == least == most
