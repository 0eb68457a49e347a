"""Proposals over ranks: what becomes of a row that the arithmetic refuses (P11, law 4)."""

from __future__ import annotations

import numpy as np

from draftwire.drafter.propose import DraftJob
from draftwire.engines.parallel.drafter import RankedDraft, proposal_of
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout, Status

REFUSED = 1


def _job(layout: Layout) -> DraftJob:
    policy = ProposalPolicy(layout, 3, 1.0, support=4 if layout is Layout.SPARSE else 0)
    return DraftJob(None, (1,), policy, 7, 1, 1, 1)


def test_e49_a_row_refused_before_the_first_draw_declines_the_proposal() -> None:
    nothing = np.zeros((0, 4), np.int32)
    ranked = RankedDraft([], [], REFUSED)
    assert proposal_of(4, _job(Layout.DENSE), ranked, nothing) is Status.REFUSED_ARITHMETIC


def test_e49_a_row_refused_after_a_draw_is_followed_by_certain_rows() -> None:
    drawn = np.array([[0, TOTAL // 2, TOTAL // 2, 0]], np.int32)
    for layout in (Layout.DENSE, Layout.SPARSE):
        ranked = RankedDraft([2], [drawn[0]], REFUSED)
        draft = proposal_of(4, _job(layout), ranked, drawn)
        assert isinstance(draft, Draft)
        assert draft.tokens == [2, 0, 0]
        assert [row.exact().of(0) for row in draft.rows] == [0, TOTAL, TOTAL]
