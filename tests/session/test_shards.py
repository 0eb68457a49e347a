"""Shard links: each carries one shard of every reply; the shards are used whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, even_shards
from draftwire.kernels.words import first_words
from draftwire.rows.shards import ShardDraft, decode_shard_rows, encode_shard_rows, settle
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.session_table import SessionTable
from draftwire.session.shards import ShardProposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.agreement import reply_bytes
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import ProposalPolicy, Reply, ReplyRow, ReplyRows
from draftwire.wire.registry import TOTAL, Layout, Outcome
from testing.harness.joined import (
    DENSE,
    IDS_ONLY,
    KEY,
    PROMPT,
    SPARSE,
    VOCABULARY,
    HashDrafter,
    Joined,
    agreement,
    reply_of,
    unpacked,
)

CODE = ProtocolErrorCode


def dense_counts(row: QRow) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(row.exact().dense(), np.int32)


class Links:
    """One request over n links, one for each shard; each rank of both sides has its own session."""

    def __init__(self, size: int) -> None:
        self.shards = even_shards(VOCABULARY, size)
        self.agreed = agreement(shard_count=size)
        self.asking = [
            VerifierSession(1, 0, PROMPT, KEY, self.agreed, shard=shard) for shard in self.shards
        ]
        self.tables = [SessionTable(self.agreed) for _ in self.shards]
        self.drafter = HashDrafter()

    def ask(self, policy: ProposalPolicy) -> list[list[object]]:
        """What comes back on each link, not yet taken."""
        answers: list[list[object]] = []
        drawn = None
        for shard, asking, table in zip(self.shards, self.asking, self.tables, strict=True):
            task = table.receive(asking.ask(policy, 0.0, 1.0)).task
            assert task is not None
            drawn = drawn or self.drafter.draft(task)
            counts = [dense_counts(row)[shard.begin : shard.end] for row in drawn.rows]
            draft = ShardDraft(shard, tuple(drawn.tokens), np.stack(counts))
            answers.append(list(unpacked(table.reply(task, draft), self.agreed)))
        return answers

    def take(self, answers: Sequence[Sequence[object]]) -> list[Proposal | Dropped | None]:
        results = []
        for asking, answer in zip(self.asking, answers, strict=True):
            taken = [asking.take(message, 0.5) for message in answer]  # type: ignore[arg-type]
            results.append(next((result for result in taken if result is not None), None))
        return results

    def settle(self, results: Sequence[Proposal | Dropped | None], depth: int) -> list[object]:
        """What each verifier rank learns from the settling."""
        asking = self.asking[0]
        words = first_words(KEY, asking.generation, asking.round, len(asking), depth)
        drafts = [
            result.draft if isinstance(result, ShardProposal) else CODE.INTERNAL
            for result in results
        ]
        return emulate(
            [
                settle(shard, draft, depth, words if shard.leads else None)
                for shard, draft in zip(self.shards, drafts, strict=True)
            ]
        )

    def commit(self, accepted: int, outcome: Outcome, token: int) -> None:
        for asking in self.asking:
            asking.commit(accepted, outcome, token)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", [DENSE, SPARSE])
def test_shards_of_a_proposal_are_the_proposal(size: int, policy: ProposalPolicy) -> None:
    """Over n links the same tokens and counts as over one; rounds follow one another."""
    links, whole = Links(size), Joined()
    for accepted in (0, 2, 1):
        results = links.take(links.ask(policy))
        assert links.settle(results, 3) == [None] * size
        one = whole.propose(policy)
        drafts = [result.draft for result in results if isinstance(result, ShardProposal)]
        assert all(draft.tokens == one.tokens for draft in drafts)
        merged = np.concatenate([draft.counts for draft in drafts], axis=1)
        for counts, row in zip(merged, one.rows, strict=True):
            np.testing.assert_array_equal(counts, dense_counts(row))
        token = (one.tokens[accepted] + 1) % VOCABULARY
        whole.asking.commit(accepted, Outcome.CORRECTION, token)
        links.commit(accepted, Outcome.CORRECTION, token)
        assert {asking.prefix_digest for asking in links.asking} == {whole.asking.prefix_digest}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_shard_that_does_not_come_costs_the_whole_proposal(lost: int) -> None:
    """On every rank, and the next round is whole again."""
    links = Links(2)
    answers = links.ask(DENSE)
    answers[lost] = []
    results = links.take(answers)
    assert links.settle(results, 3) == [CODE.INTERNAL] * 2
    for asking in links.asking:
        asking.give_up(DropReason.MISSED_DEADLINE)
    links.commit(0, Outcome.TARGET_ONLY, 0)
    assert links.settle(links.take(links.ask(DENSE)), 3) == [None] * 2


Change = Callable[[ShardDraft], ShardDraft]


def with_counts(change: Callable[[np.ndarray], None]) -> Change:  # type: ignore[type-arg]
    def changed(draft: ShardDraft) -> ShardDraft:
        counts = draft.counts.copy()
        change(counts)
        return replace(draft, counts=counts)

    return changed


def one_more(counts: np.ndarray) -> None:  # type: ignore[type-arg]
    counts[1, 0] += 1


def other_token(draft: ShardDraft) -> ShardDraft:
    return replace(draft, tokens=((draft.tokens[0] + 1) % VOCABULARY, *draft.tokens[1:]))


def one_less(draft: ShardDraft) -> ShardDraft:
    return replace(draft, tokens=draft.tokens[:2], counts=draft.counts[:2])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (with_counts(one_more), CODE.WRONG_MASS),
        (other_token, CODE.BAD_FIELD),
        (one_less, CODE.BAD_FIELD),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_shards_that_are_no_one_proposal(change: Change, code: CODE, rank: int) -> None:
    links = Links(2)
    results = links.take(links.ask(DENSE))
    mine = results[rank]
    assert isinstance(mine, ShardProposal)
    results[rank] = replace(mine, draft=change(mine.draft))
    assert links.settle(results, 3) == [code] * 2


def test_tickets_moved_between_shards_are_found_by_the_audit() -> None:
    """The mass is M still; but the words no longer draw these tokens."""
    links = Links(2)
    results = links.take(links.ask(DENSE))
    first, second = (result.draft for result in results if isinstance(result, ShardProposal))
    moved = [first.counts.copy(), second.counts.copy()]
    for row in range(3):
        taken = moved[0][row].argmax(), moved[1][row].argmax()
        moved[0][row, taken[0]], moved[1][row, taken[1]] = (
            moved[1][row, taken[1]],
            moved[0][row, taken[0]],
        )
    swapped = [
        replace(result, draft=replace(result.draft, counts=counts))
        for result, counts in zip(results, moved, strict=True)
        if isinstance(result, ShardProposal)
    ]
    assert links.settle(swapped, 3)[0] in (CODE.AUDIT_FAILED, CODE.ZERO_Q_AT_TOKEN)
    assert len(set(links.settle(swapped, 3))) == 1


def test_a_token_without_a_ticket_on_any_shard() -> None:
    shards = even_shards(4, 2)
    counts = np.array([[TOTAL, 0, 0, 0]], np.int32)
    drafts = [ShardDraft(s, (2,), counts[:, s.begin : s.end]) for s in shards]
    ranks = [settle(s, d, 1, None) for s, d in zip(shards, drafts, strict=True)]
    assert emulate(ranks) == [CODE.ZERO_Q_AT_TOKEN] * 2


def test_another_shard_than_the_links_is_refused() -> None:
    """WRONG_SHARD on the rank it reached; the settling then drops it on all."""
    links = Links(2)
    answers = links.ask(DENSE)
    results = links.take([answers[1], answers[0]])
    assert all(isinstance(result, Dropped) for result in results)
    assert {result.reason for result in results if isinstance(result, Dropped)} == {
        DropReason.WRONG_SHARD
    }


SHARD = Shard(10, 4, 8, 1, 3)


def reply_with(layout: Layout, rows: ReplyRows, support: int) -> Reply:
    base = reply_of(Joined().ask())
    return replace(
        base, layout=layout, rows=rows, support=support, first_position=5, shard_index=1,
        shard_count=3, shard_begin=4, shard_end=8,
    )  # fmt: skip


def row_with(q: bytes, entries: int, token: int = 0, position: int = 5) -> ReplyRow:
    return ReplyRow(position, token, entries, crc32c(q) if q else 0, q)


def dense(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def sparse(ids: Sequence[int], *values: float) -> bytes:
    return np.array(ids, "<i4").tobytes() + dense(*values)


def refused(layout: Layout, row: ReplyRow, support: int) -> CODE | None:
    try:
        decode_shard_rows(reply_with(layout, ReplyRows.of([row]), support), SHARD)
    except ProtocolError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (row_with(dense(0, 0.5, 0, 0.25), 4), None),
        (row_with(dense(0, 0, 0, 0), 4), None),
        (row_with(dense(0, 0.5, 0, 0.25), 4, position=6), CODE.WRONG_POSITION),
        (ReplyRow(5, 0, 4, 1, dense(0, 0, 0, 0)), CODE.BAD_Q_CHECKSUM),
        (row_with(dense(0, 0, 0), 4), CODE.WRONG_SIZE),
        (row_with(dense(0, 0, 0, 0), 4, token=10), CODE.ID_OUT_OF_RANGE),
        (row_with(dense(0, 0, 0, 0), 4, token=-1), CODE.ID_OUT_OF_RANGE),
        (row_with(dense(0, 0, 0, 0), 3), CODE.MISSING_Q),
        (row_with(dense(0, 0, 0, 0), 5), CODE.WRONG_SIZE),
        (row_with(dense(0, np.nan, 0, 0), 4), CODE.NON_FINITE_Q),
        (row_with(dense(0, np.inf, 0, 0), 4), CODE.NON_FINITE_Q),
        (row_with(dense(0, -0.0, 0, 0), 4), CODE.NEGATIVE_ZERO_Q),
        (row_with(dense(0, -0.5, 0, 0), 4), CODE.NEGATIVE_Q),
        (row_with(dense(0, 2.0**-25, 0, 0), 4), CODE.NON_DYADIC_Q),
        (row_with(dense(0, 3e38, 0, 0), 4), CODE.WRONG_MASS),
        (row_with(dense(0, -0.5, np.nan, 0), 4), CODE.NEGATIVE_Q),
    ],
)
def test_a_dense_shard_is_judged_in_the_order_of_p14(row: ReplyRow, code: CODE | None) -> None:
    assert refused(Layout.DENSE, row, 4) == code


@pytest.mark.parametrize(
    ("q", "entries", "code"),
    [
        (sparse([4, 7, -1], 0.5, 0.25, 0), 2, None),
        (sparse([-1, -1, -1], 0, 0, 0), 0, None),
        (sparse([4, 5, 7], 0.5, 0.25, 0.25), 3, None),
        (sparse([3, 7, -1], 0.5, 0.25, 0), 2, CODE.ID_OUT_OF_RANGE),
        (sparse([4, 8, -1], 0.5, 0.25, 0), 2, CODE.ID_OUT_OF_RANGE),
        (sparse([7, 4, -1], 0.5, 0.25, 0), 2, CODE.UNSORTED_SUPPORT),
        (sparse([4, 4, -1], 0.5, 0.25, 0), 2, CODE.DUPLICATE_ID),
        (sparse([4, 7, -1], 0.5, 0, 0), 2, CODE.ZERO_COUNT_ENTRY),
        (sparse([4, 7, 0], 0.5, 0.25, 0), 2, CODE.NONZERO_PADDING),
        (sparse([4, 7, -1], 0.5, 0.25, 0.5), 2, CODE.NONZERO_PADDING),
        (sparse([4, 7, -1], 0.5, 0.25, -0.0), 2, CODE.NONZERO_PADDING),
        (sparse([4, 7, -1], 0.5, 0.25, 0), 4, CODE.WRONG_SIZE),
    ],
)
def test_a_sparse_shard_may_be_empty_and_is_canonical(
    q: bytes, entries: int, code: CODE | None
) -> None:
    assert refused(Layout.SPARSE, row_with(q, entries), 3) == code


def test_a_greedy_shard_is_a_point_on_its_owner() -> None:
    for token in range(10):
        reply = reply_with(Layout.IDS_ONLY, ReplyRows.of([row_with(b"", 0, token)]), 0)
        counts = decode_shard_rows(reply, SHARD).counts
        assert counts.sum() == (TOTAL if SHARD.owns(token) else 0)
    assert IDS_ONLY.layout is Layout.IDS_ONLY


def test_what_is_encoded_is_decoded_and_has_a_fixed_size() -> None:
    rng = np.random.default_rng(2)
    for layout, support in ((Layout.DENSE, 0), (Layout.SPARSE, 4), (Layout.IDS_ONLY, 0)):
        for _ in range(50):
            counts = rng.integers(0, TOTAL // 4 + 1, (2, 4)) * (rng.random((2, 4)) < 0.5)
            if layout is Layout.IDS_ONLY:
                counts[:] = 0
            draft = ShardDraft(SHARD, (1, 9), counts.astype(np.int32))
            rows = encode_shard_rows(draft, 5, layout, support)
            width = 4 if layout is Layout.DENSE else support
            found = decode_shard_rows(reply_with(layout, rows, width), SHARD)
            np.testing.assert_array_equal(found.counts, draft.counts)
            assert found.tokens == draft.tokens
            assert {len(row.q) for row in rows} == {
                (reply_bytes(layout, 4, 2, support) - 64) // 2 - 16
            }
