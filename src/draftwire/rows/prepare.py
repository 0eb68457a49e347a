"""Compile every loop that a round runs, on either side, before any deadline is running."""

from __future__ import annotations

import numpy as np

from draftwire.kernels import cpu
from draftwire.kernels.rows import SparseRows
from draftwire.kernels.words import first_words
from draftwire.rows import packed, payload
from draftwire.rows.audit import first_audit_failure
from draftwire.wire.fields import POSITION_TABLE
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from draftwire.wire.rows import PackedRows

_POLICIES = (
    ProposalPolicy(Layout.DENSE, 1, 1.0),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=8),
)


def prepare() -> None:
    """Compile the loops, or load them from their cache (seconds, once; then next to nothing)."""
    cpu.prepare()
    first_words(0, 1, 1, 1, 1)
    logits = np.linspace(-3, 3, 64, dtype=np.float32)
    for policy in _POLICIES:
        row = cpu.quantise(logits, policy)
        token = cpu.draw(row, 0)
        width = 4 * logits.size if policy.layout is Layout.DENSE else 8 * policy.support
        store = memoryview(bytearray(width))
        payload.encode_q(row, policy.layout, policy.support, store)
        entries = len(row.counts)
        # A reply is decoded from a read-only view, which is a type of its own to the compiler.
        for q in (store, store.toreadonly()):
            payload.decode_q(q, policy.layout, logits.size, policy.support, entries, token)
        if policy.layout is Layout.SPARSE:
            (encoded,) = payload.encode_reply_rows([row], [token], 1, policy.layout, policy.support)
            head = POSITION_TABLE.pack_values(1, token, encoded.entries, encoded.checksum)
            packed.read_packed(PackedRows(head + bytes(encoded.q), width), 1, logits.size)
            rows = SparseRows.room(logits.size, 1, policy.support)
            rows.append(row)
            first_audit_failure(rows.block, np.zeros(1, np.int64))
