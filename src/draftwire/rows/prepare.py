"""Compile the loops of the CPU that a round runs, on either side, before any deadline runs."""

from __future__ import annotations

import numpy as np

from draftwire.kernels import cpu
from draftwire.kernels.cpu.kernels import prepare as prepare_verify
from draftwire.kernels.words import proposal_words
from draftwire.rows.audit import first_audit_failure
from draftwire.rows.reply import decode_rows, encode_rows
from draftwire.wire.messages import ProposalPolicy, Reply
from draftwire.wire.registry import Layout

_POLICIES = (
    ProposalPolicy(Layout.DENSE, 1, 1.0),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=8),
)


def prepare() -> None:
    """Compile the loops, or load them from their cache (seconds, once; then next to nothing)."""
    cpu.prepare()
    prepare_verify()
    uniform24 = proposal_words(0, 1, 1, 1, 1)
    logits = np.linspace(-3, 3, 64, dtype=np.float32)
    for policy in _POLICIES:
        row = cpu.quantise(logits, policy)
        token = cpu.draw(row, int(uniform24[0]))
        rows = encode_rows([row], [token], 1, policy.layout, policy.support)
        support = policy.support or logits.size
        reply = Reply(
            1, 0, policy.layout, 1, 1, 1, bytes(16), 0, 0, 1, 0, logits.size, support, rows
        )
        assert first_audit_failure(decode_rows(reply, logits.size), [token], uniform24) is None
