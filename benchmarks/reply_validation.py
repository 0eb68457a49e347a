"""Receive and validate a reply that is in the socket buffer's memory already.

From bytes to a proposal that may be consumed: framing, checksums, canonical decoding, every check
of P12 to P14, and the audit of every draw. Beside it: a copy of the same bytes with one CRC32C.
"""

from __future__ import annotations

import numpy as np

from benchmarks.common import Goal, Result, alternate, medians, ratio
from benchmarks.exchange import Exchange, policies
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

VOCABULARY = 129_280
DEPTH = 5
DENSE_LIMIT = 3.0  # of a copy and a CRC32C of the same bytes
SPARSE_LIMIT_SECONDS = 100e-6


def run(quick: bool) -> Result:
    """Measure the dense and the sparse layout."""
    result = Result(f"receive and validate, V={VOCABULARY:,}, K={DEPTH}")
    repeats = 40 if quick else 200
    for policy in policies(DEPTH, support=32):
        _measure(result, policy, repeats if policy.layout is Layout.DENSE else repeats * 10)
    return result


def _measure(result: Result, policy: ProposalPolicy, repeats: int) -> None:
    exchange = Exchange(VOCABULARY, policy)
    data = exchange.reply_bytes()
    source = np.frombuffer(data, np.uint8)
    copy = np.empty_like(source)

    def copy_and_crc() -> int:
        np.copyto(copy, source)
        return crc32c(copy.data)

    times = alternate(
        {
            "receive, validate, audit": exchange.take,
            "receive, validate": exchange.take_without_audit,
            "copy + CRC32C": copy_and_crc,
        },
        repeats,
    )
    name = policy.layout.name.lower() + (f":{policy.support}" if policy.support else "")
    found = medians(times)
    found["audit"] = round(found["receive, validate, audit"] - found["receive, validate"], 2)
    result.figures[f"{name}, {len(data):,} bytes, microseconds"] = found
    if policy.layout is Layout.DENSE:
        value = ratio(times, "receive, validate", "copy + CRC32C")
        goal = Goal("receive+validate dense / copy+CRC", value, DENSE_LIMIT)
    else:
        value = found["receive, validate"] / 1e6
        goal = Goal("receive+validate sparse:32, seconds", value, SPARSE_LIMIT_SECONDS)
    result.goals.append(goal)
