"""Checks of A1 to A22: ``exact`` against every vector, ``kernels`` wherever M is 2^24."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from draftwire.conformance.vectors import Vector, Words, binary32, binary64, expect
from draftwire.errors import ArithmeticRefusalError
from draftwire.exact import quantise as exact
from draftwire.exact import verify as exact_verify
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.decide import below, locate
from draftwire.exact.words import (
    WORD_BITS,
    Address,
    Domain,
    KeyedWords,
    ProposalWords,
    RequestKey,
    link_key,
    philox4x32,
)
from draftwire.kernels import cpu
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.protocol import Round
from draftwire.kernels.rows import QRow
from draftwire.verifier.judge import judge
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINARY64_INTEGERS = 1 << 53


def refusal_of(program: Callable[[], object]) -> object:
    """What a program returns, or the name of the code that it refuses with."""
    try:
        return program()
    except ArithmeticRefusalError as error:
        return error.code.name


def counts_of(row: Vector, vocab_size: int, total: int) -> Counts:
    """The counts of a vector."""
    return Counts(vocab_size, total, tuple(row["ids"]), tuple(row["counts"]))


# Logits to counts --------------------------------------------------------------------------------


def check_quantise(vector: Vector) -> None:
    """A1 to A10."""
    logits = binary32(vector["logits"])
    (temperature,) = binary32(vector["temperature"])
    total = vector["total"]
    settings = {name: vector[name] for name in ("top_k", "top_p", "min_p")}
    expected: object = vector.get("refused")
    if expected is None:
        expected = counts_of(vector, len(logits), total)
    found = refusal_of(
        lambda: exact.quantise(
            logits, temperature, limit=vector["support"], total=total, **settings
        )
    )
    expect("exact counts", found, expected)
    if "weights" in vector:
        expect("exact weights", exact.weights(logits, temperature), vector["weights"])
    if total == TOTAL:
        layout = Layout.SPARSE if vector["support"] else Layout.DENSE
        policy = ProposalPolicy(layout, 1, temperature, support=vector["support"], **settings)
        row = np.array(logits, np.float32)
        found = refusal_of(lambda: cpu.quantise(row, policy).exact())
        expect("kernel counts", found, expected)


def check_allocate(vector: Vector) -> None:
    """A9 and A11."""
    found = refusal_of(lambda: exact.allocate(vector["weights"], vector["total"]))
    expect("counts", found, vector.get("refused", vector.get("counts")))


def check_fp32_weights(vector: Vector) -> None:
    """A12."""
    found = refusal_of(lambda: exact.fp32_weights(binary64(vector["weights"])))
    if "refused" in vector:
        expect("weights", found, vector["refused"])
    else:
        integers = [int(digits) for digits in vector["integers"]]
        expect("weights", found, (integers, int(vector["sum"])))


def check_exp64(vector: Vector) -> None:
    """A4, to the last bit."""
    (d,) = binary64(vector["d"])
    (result,) = binary64(vector["result"])
    expect("exp64", exact.exp64(d).hex(), result.hex())


# Words -------------------------------------------------------------------------------------------


def request_of(vector: Vector) -> RequestKey:
    """Seed and stream of a vector."""
    return RequestKey(int(vector["seed"], 16), int(vector["stream"], 16))


def check_philox(vector: Vector) -> None:
    """The generator itself."""
    c0, c1, c2, c3 = vector["counter"]
    k0, k1 = vector["key"]
    lanes = philox4x32((c0, c1, c2, c3), (k0, k1), vector["rounds"])
    expect("lanes", list(lanes), vector["lanes"])


def check_key(vector: Vector) -> None:
    """KEY(domain)."""
    request, domain = request_of(vector), Domain[vector["domain"]]
    expect("key", list(request.key(domain)), vector["key"])
    if domain is Domain.PROPOSAL:
        expect("proposal key", request.proposal_key, int(vector["u64"], 16))
        expect("link key", link_key(request.proposal_key), int(vector["link"], 16))


def check_words(vector: Vector) -> None:
    """The words of an address, and what the drafter computes of them."""
    request, domain, bits = request_of(vector), Domain[vector["domain"]], vector["bits"]
    address = Address(vector["generation"], vector["round"], vector["position"], domain)
    count = len(vector["words"])
    found = list(islice(KeyedWords(request, bits).words(address), count))
    expect("words", found, vector["words"])
    if domain is Domain.PROPOSAL:
        drafter = ProposalWords(request.proposal_key, bits)
        expect("drafter's words", list(islice(drafter.words(address), count)), vector["words"])


def check_below(vector: Vector) -> None:
    """A14."""
    words = Words(vector["words"])
    expect("value", below(vector["bound"], words, vector["bits"]), vector["value"])
    expect("words read", words.read, vector["read"])


def check_locate(vector: Vector) -> None:
    """A15."""
    words = Words(vector["words"])
    found = locate(vector["edges"], vector["denominator"], words, vector["bits"])
    expect("index", found, vector["index"])
    expect("words read", words.read, vector["read"])


def check_draw(vector: Vector) -> None:
    """A16."""
    words, bits = Words(vector["words"]), vector["bits"]
    counts = counts_of(vector, vector["vocab_size"], vector["total"])
    expect("token", exact_verify.draw(counts, words, bits), vector["token"])
    expect("words read", words.read, vector["read"])
    if counts.total == TOTAL and bits == WORD_BITS:
        for dense in (True, False):
            row = QRow.of_counts(counts, dense=dense)
            expect("kernel token", cpu.draw(row, vector["words"][0]), vector["token"])


# Rounds ------------------------------------------------------------------------------------------


def binary64_rows(vector: Vector) -> NDArray[np.float64] | None:
    """The target rows for the kernels, where binary64 holds them exactly."""
    if max(max(row) for row in vector["rows"]) > BINARY64_INTEGERS:
        return None
    return np.array(vector["rows"], np.float64)


def check_target_only(vector: Vector) -> None:
    """A round without a proposal (A20)."""
    source = KeyedWords(request_of(vector), vector["bits"])
    where = (vector["generation"], vector["round"], vector["first_position"])
    address = Address(*where, Domain.TARGET_ONLY)
    expected = vector.get("refused", vector.get("token"))
    row = vector["rows"][0]
    found = refusal_of(lambda: exact_verify.target(row, source.words(address), vector["bits"]))
    expect("token", found, expected)
    rows = binary64_rows(vector)
    if rows is not None and vector["bits"] == WORD_BITS:
        this = Round((), (), 0, 1, source, *where)
        found = refusal_of(lambda: _committed(rows, this)[-1])
        expect("kernel token", found, expected)


def check_round(vector: Vector) -> None:
    """Draws, audit and verdict of a proposal (A16, A18 to A20, A22)."""
    source = KeyedWords(request_of(vector), vector["bits"])
    vocab_size = len(vector["rows"][0])
    where = {name: vector[name] for name in ("generation", "round", "first_position")}
    q = [counts_of(row, vocab_size, vector["total"]) for row in vector["q"]]
    for index, (counts, token) in enumerate(zip(q, vector["drafts"], strict=True)):
        position = vector["first_position"] + index
        address = Address(vector["generation"], vector["round"], position, Domain.PROPOSAL)
        drawn = exact_verify.draw(counts, source.words(address), vector["bits"])
        expect(f"audit of draft {index}", drawn == token, vector["audit"][index])
    expected: object = vector.get("refused")
    if expected is None:
        expected = exact_verify.Verdict(vector["accepted"], vector["token"], vector["outcome"])
    proposal = list(zip(vector["drafts"], q, strict=True))
    found = refusal_of(
        lambda: exact_verify.verify(vector["rows"], proposal, source, bits=vector["bits"], **where)
    )
    expect("verdict", found, expected)
    rows = binary64_rows(vector)
    if rows is not None and vector["bits"] == WORD_BITS and vector["total"] == TOTAL:
        for dense in (True, False):
            arrays = [QRow.of_counts(counts, dense=dense) for counts in q]
            this = Round(vector["drafts"], arrays, 0, len(rows), source, *where.values())
            found = refusal_of(lambda this=this: _verdict(rows, this))  # type: ignore[misc]
            expect("kernel verdict", found, expected)


def _committed(rows: NDArray[np.float64], this: Round) -> tuple[int, ...]:
    """The tokens that the CPU's kernels commit. Errors: ArithmeticRefusalError."""
    (judgement,) = judge(CpuKernels(), rows, [this])
    if judgement.refusal is not None:
        raise judgement.refusal
    return judgement.tokens


def _verdict(rows: NDArray[np.float64], this: Round) -> exact_verify.Verdict:
    """As the exact layer says it. Errors: ArithmeticRefusalError."""
    tokens = _committed(rows, this)
    accepted = len(tokens) - 1
    outcome: Literal["bonus", "correction"]
    outcome = "bonus" if accepted == len(this.tokens) else "correction"
    return exact_verify.Verdict(accepted, tokens[-1], outcome)
