"""A30 on the drafter's side: rows after processors, held to the oracle bit for bit (case M15)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.drafter import mirror as mirrors
from draftwire.drafter.mirror import Mirror
from draftwire.drafter.propose import DraftJob, propose
from draftwire.errors import ProtocolError
from draftwire.kernels.registry import kernels_for
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    NoRepeatNgram,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
    encode_processors,
)
from draftwire.wire.registry import Layout, Status
from spec.oracle import processors as oracle
from spec.oracle.frames import Refused
from testing.toys.models import ToyDrafter, constant, mixed

V = 5
NEVER = float("-inf")
DENSE = ProposalPolicy(Layout.DENSE, 3, 1.0)

number = st.floats(-8, 8, width=32).map(lambda value: value + 0.0)
bias = st.one_of(number, st.just(NEVER))
token = st.integers(0, V - 1)
start = st.integers(0, 6)
some = st.sets(token, min_size=1).map(lambda ids: tuple(sorted(ids)))
places = st.tuples(start, st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair)))
sequence = st.tuples(bias, st.lists(token, min_size=1, max_size=3).map(tuple))
kinds: st.SearchStrategy[Processor] = st.one_of(
    st.builds(Repetition, start, st.floats(0.25, 4, width=32)),
    st.builds(Occurrence, start, number, number),
    st.builds(NoRepeatNgram, start, st.integers(1, 4)),
    st.dictionaries(token, bias, min_size=1).map(
        lambda found: Bias(tuple(sorted(found)), tuple(found[each] for each in sorted(found)))
    ),
    st.builds(lambda pair, ids: Suppress(*pair, ids), places, some),
    st.builds(lambda pair, ids: Allow(*pair, ids), places, some),
    st.builds(Sequences, start, st.lists(sequence, min_size=1, max_size=6).map(tuple)),
)
texts = st.lists(token, min_size=1, max_size=9).map(tuple)


def expected(row: Sequence[float], text: Sequence[int], encoded: bytes) -> list[float] | None:
    """The oracle's row, or None where it comes to +infinity."""
    exact = [None if z == NEVER else Fraction(z) for z in row]
    try:
        made = oracle.processed(exact, text, oracle.read_processors(encoded, V))
    except Refused:
        return None
    return [NEVER if z is None else float(z) for z in made]


def adjusted(kernels: str, rows: Any, mirrors: Sequence[Mirror | None]) -> list[list[float]]:
    given = [() if mirror is None else mirror.adjustments() for mirror in mirrors]
    made = kernels_for(kernels, "cpu").adjust(rows, given)
    return np.asarray(made).tolist()


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_rows_behind_texts_are_the_oracles_to_the_bit(kernels: str, data: st.DataObject) -> None:
    """Texts of several sessions, some without processors, grow, are drafted for, and grow again."""
    count = data.draw(st.integers(1, 3))
    every = [data.draw(st.lists(kinds, max_size=3)) for _ in range(count)]
    encoded = [encode_processors(each) for each in every]
    prefixes = [Prefix(data.draw(texts)) for _ in range(count)]
    mirrors = [
        Mirror(data, prefix, V) if data else None
        for data, prefix in zip(encoded, prefixes, strict=True)
    ]
    for _ in range(3):
        drafts: list[list[int]] = [[] for _ in range(count)]
        for mirror, prefix in zip(mirrors, prefixes, strict=True):
            if mirror is not None:
                mirror.follow(len(prefix))
        for _ in range(3):
            logits = st.floats(-100, 100, width=32) | st.just(NEVER)
            rows = data.draw(
                st.lists(st.lists(logits, min_size=V, max_size=V), min_size=count, max_size=count)
            )
            array = np.array(rows, np.float32)
            kept = array.copy()
            given_rows = torch.from_numpy(array) if kernels == "torch" else array
            made = adjusted(kernels, given_rows, mirrors)
            assert np.array_equal(array, kept)  # the engine's own rows are not written into
            for at in range(count):
                text = (*prefixes[at].tokens(), *drafts[at])
                wanted = expected(rows[at], text, encoded[at])
                assert wanted is None or made[at] == wanted
                drafts[at].append(data.draw(token))
                mirror = mirrors[at]
                if mirror is not None:
                    mirror.draft(drafts[at][-1])
        for prefix in prefixes:
            prefix.extend(data.draw(texts))


def test_ids_beyond_the_vocabulary_are_a_typed_refusal() -> None:
    with pytest.raises(ProtocolError, match=r"outside 0\.\.4"):
        Mirror(encode_processors([Suppress(0, ALWAYS, (V,))]), Prefix((0,)), V)


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@pytest.mark.parametrize("width", [torch.float16, torch.bfloat16])
def test_narrow_logits_are_widened_before_anything_is_done(kernels: str, width: Any) -> None:
    """0.1 + 0.1 in binary32, of a narrow 0.1: another number than their narrow sum."""
    narrow = torch.full((1, V), 0.1, dtype=width)
    value = struct.unpack("<f", struct.pack("<f", 0.3))[0]
    mirror = Mirror(encode_processors([Bias((1,), (value,))]), Prefix((0,)), V)
    mirror.follow(1)
    (row,) = adjusted(kernels, narrow, [mirror])
    assert row == expected(narrow.float()[0].tolist(), (0,), mirror.encoded)
    assert row[1] != float(narrow[0, 1] + torch.tensor(value, dtype=width))


def test_infinity_and_nan_are_refused_as_before() -> None:
    """ALLOW adds to what is +infinity or NaN; nothing of it may become an ordinary row."""
    mirror = Mirror(encode_processors([Allow(0, ALWAYS, (0,))]), Prefix((0,)), V)
    mirror.follow(1)
    for kernels in ("cpu", "torch"):
        for bad in (float("inf"), float("nan")):
            rows = np.array([[0.0, bad, 1.0, 2.0, 3.0]], np.float32)
            adjusted_ = kernels_for(kernels, "cpu").adjust(rows, [mirror.adjustments()])
            _, status = kernels_for(kernels, "cpu").quantise(adjusted_, DENSE)
            assert int(status[0]) != 0
        with pytest.raises(Exception, match="binary32 or narrower"):
            kernels_for(kernels, "cpu").adjust(np.zeros((1, V)), [mirror.adjustments()])


def job(
    engine: ToyDrafter, prompt: tuple[int, ...], processors: Sequence[Processor], **changes: Any
) -> DraftJob[Any]:
    encoded = encode_processors(processors)
    mirror = None
    if encoded:
        mirror = Mirror(encoded, Prefix(prompt), V)
        mirror.follow(len(prompt))
    policy = replace(DENSE, processors=encoded, **changes)
    return DraftJob(engine.open(), prompt, policy, 7, 1, 1, len(prompt), mirror=mirror)


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_a_proposal_is_that_of_a_model_which_does_so_itself(kernels: str) -> None:
    """Each drafted token counts as text for the row behind it, in every session of a batch."""
    table = mixed(V, 3, sharpness=0.5)
    every: list[list[Processor]] = [
        [Occurrence(0, 0.5, 0.25), Bias((2,), (1.0,))],
        [],
        [NoRepeatNgram(0, 1)],
        [Suppress(3, 4, (0, 1)), Allow(4, 5, (3,))],
        [Repetition(2, 3.0), Sequences(0, ((NEVER, (2, 3)), (2.0, (4,))))],
    ]
    prompts = [(0, 1, 1), (2, 3), (1, 1), (4, 2), (3, 2)]
    engine = ToyDrafter(table, V)
    jobs = [job(engine, *each) for each in zip(prompts, every, strict=True)]
    drafts = propose(engine, jobs, kernels=kernels)
    for prompt, processors, draft in zip(prompts, every, drafts, strict=True):
        own = _Processed(table, V, encoded=encode_processors(processors))
        (alone,) = propose(own, [job(own, prompt, [])], kernels=kernels)
        assert isinstance(draft, Draft)
        assert isinstance(alone, Draft)
        assert draft.tokens == alone.tokens
        for one, other in zip(draft.rows, alone.rows, strict=True):
            assert one.exact() == other.exact()
    repeats = propose(engine, [job(engine, prompts[2], [])], kernels=kernels)[0]
    assert isinstance(repeats, Draft)
    assert repeats.tokens != drafts[2].tokens  # type: ignore[union-attr]


class _Processed(ToyDrafter):
    """A toy whose own logits are those that the oracle makes."""

    def __init__(self, table: Any, vocab_size: int, *, encoded: bytes) -> None:
        super().__init__(table, vocab_size)
        self._encoded = encoded

    def forward(self, batch: Any) -> Any:
        rows = super().forward(batch)
        made = [
            expected(row.tolist(), context.tokens, self._encoded)
            for (context, _), row in zip(batch, rows, strict=True)
        ]
        return np.array(made, np.float32)


def test_a_row_without_any_id_left_is_refused_arithmetic() -> None:
    engine = ToyDrafter(constant(1, 1, 1, 1, 1), V)
    nothing = Suppress(0, ALWAYS, tuple(range(V)))
    refused, other = propose(engine, [job(engine, (0,), [nothing]), job(engine, (1,), [])])
    assert refused is Status.REFUSED_ARITHMETIC
    assert isinstance(other, Draft)


def agrees(seed: int) -> bool:
    """Whether one text of a fixed history, with drafts that are rejected, has the oracle's rows."""
    rng = np.random.default_rng(seed)
    processors: list[Processor] = [
        Repetition(2, 1.5),
        Occurrence(1, 0.5, 0.25),
        NoRepeatNgram(0, 2),
        Suppress(6, 9, (1,)),
        Sequences(3, ((-2.0, (1, 2)), (-1.0, (3,)), (-0.5, (2, 4, 0)))),
    ]
    encoded = encode_processors(processors)
    prefix = Prefix(rng.integers(0, V, 4).tolist())
    mirror = Mirror(encoded, prefix, V)
    for _ in range(3):
        mirror.follow(len(prefix))
        drafts: list[int] = []
        for _ in range(3):
            row = rng.normal(size=V).astype(np.float32)
            (made,) = adjusted("cpu", row[None], [mirror])
            if made != expected(row.tolist(), (*prefix.tokens(), *drafts), encoded):
                return False
            drafts.append(int(rng.integers(V)))
            mirror.draft(drafts[-1])
        prefix.extend(rng.integers(0, V, 2).tolist())
    return True


ONES = property(lambda self: np.ones_like(self.ids))
FOLLOWERS = mirrors.followers
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "drafts are no text": (Mirror, "draft", lambda self, token: None),
    "rejected drafts stay counted": (mirrors.Counts, "remove", lambda self, token: None),
    "n-grams of one id more": (mirrors, "followers", lambda text, size: FOLLOWERS(text, size + 1)),
    "how often does not count": (mirrors.Counts, "counts", ONES),
}


def test_fixed_histories_agree() -> None:
    assert all(agrees(seed) for seed in range(20))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    assert not all(agrees(seed) for seed in range(20))
