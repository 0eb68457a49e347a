"""Vectors of whole rounds (A16 to A22) and of laws over all words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from spec.generators.vectors.form import Numbers, Vector, fraction, sparse
from spec.oracle import decisions, laws
from spec.oracle.arithmetic import TOTAL, Refused, allocate
from spec.oracle.words import PROPOSAL, TARGET_ONLY, WORD_BITS, key_of, words_at

Rows = Sequence[Sequence[int]]


def words_of(seed: int, stream: int, generation: int, round_: int, bits: int) -> decisions.Words:
    """The words of one round."""
    return lambda position, domain: words_at(
        key_of(seed, stream, domain), generation, round_, position, bits
    )


def round_of(
    note: str,
    rows: Rows,
    counts: Rows,
    drafts: Sequence[int] | None = None,
    *,
    seed: int = 1,
    stream: int = 0,
    generation: int = 1,
    round_: int = 1,
    first_position: int = 10,
    bits: int = WORD_BITS,
) -> Vector:
    """A round: its drafts (drawn here unless given), its verdict, and what the audit says."""
    words = words_of(seed, stream, generation, round_, bits)
    places = range(first_position, first_position + len(counts))
    drawn = [
        decisions.draw(row, words(place, PROPOSAL), bits)
        for place, row in zip(places, counts, strict=True)
    ]
    proposal = drawn if drafts is None else list(drafts)
    vector: Vector = {
        "op": "round" if counts else "target_only",
        "note": note,
        "seed": f"{seed:032x}",
        "stream": f"{stream:016x}",
        "generation": generation,
        "round": round_,
        "first_position": first_position,
        "bits": bits,
        "rows": [list(row) for row in rows],
    }
    if not counts:
        return {**vector, **target_only(rows[0], words(first_position, TARGET_ONLY), bits)}
    audited = [
        decisions.audit(row, token, words, place, bits)
        for place, row, token in zip(places, counts, proposal, strict=True)
    ]
    vector |= {
        "total": sum(counts[0]),
        "q": [sparse(row) for row in counts],
        "drafts": proposal,
        "audit": audited,
    }
    weights = [[Fraction(a) for a in row] for row in rows]
    try:
        verdict = decisions.verify(weights, proposal, counts, words, first_position, bits)
    except Refused as refusal:
        return {**vector, "refused": refusal.code}
    return {
        **vector,
        "accepted": verdict.accepted,
        "token": verdict.token,
        "outcome": verdict.outcome,
    }


def target_only(row: Sequence[int], words: Iterator[int], bits: int) -> Vector:
    """One token from p alone."""
    try:
        return {"token": decisions.sample([Fraction(a) for a in row], words, bits)}
    except Refused as refusal:
        return {"refused": refusal.code}


def random_row(numbers: Numbers, size: int, largest: int, zeros: int) -> list[int]:
    """Integer weights, about ``zeros`` in 8 of them zero."""
    row = [0 if numbers.below(8) < zeros else 1 + numbers.below(largest) for _ in range(size)]
    row[numbers.below(size)] += 1
    return row


def random_rounds() -> Iterator[Vector]:
    """Many small and some larger rounds, near and far, dense and sparse."""
    for index in range(60):
        numbers = Numbers(1000 + index)
        size = (2, 3, 5, 8, 33)[index % 5]
        depth = index // 5 % 5
        largest = (9, 1000, (1 << 40))[index % 3]
        rows = [random_row(numbers, size, largest, index % 4) for _ in range(depth + 1)]
        near = index % 2
        counts = [
            allocate(row if near else random_row(numbers, size, 50, (index + 2) % 5), TOTAL)
            for row in rows[:depth]
        ]
        if near:  # not too near: half of the tickets of the largest id move on
            counts = [moved(row) for row in counts]
        yield round_of(
            "near" if near else "far",
            rows,
            counts,
            seed=index * index,
            stream=index % 3,
            generation=1 + index % 4,
            round_=1 + index % 7,
            first_position=index * 13,
        )


def moved(row: Sequence[int]) -> list[int]:
    """A row with half of its largest count on the id after it."""
    best = max(range(len(row)), key=lambda v: (row[v], -v))
    result = list(row)
    result[(best + 1) % len(row)] += row[best] // 2
    result[best] -= row[best] // 2
    return result


def chosen_rounds() -> Iterator[Vector]:
    """What a nearly right verifier gets wrong."""
    half = TOTAL // 2
    point = [0, TOTAL, 0]
    for seed in range(4):
        yield round_of("p = q: no word is read", [[1, 1], [1, 3]], [[half, half]], seed=seed)
        yield round_of("greedy draft with p = 0", [[3, 0, 5], [1, 1, 1]], [point], seed=seed)
        yield round_of("one legal id", [[0, 0, 9]] * 3, [[half, half, 0]] * 2, seed=seed)
        yield round_of(
            "all residual outside of a sparse support",
            [[1, 0, 7, 0, 9], [1, 1, 1, 1, 1]],
            [[half, half, 0, 0, 0]],
            seed=seed,
        )
    for rejected in range(4):
        rows = [[0, 1] if i == rejected else [1, 0] for i in range(5)]
        yield round_of(f"rejected at {rejected}", rows, [[TOTAL, 0]] * 4)
    yield round_of("target alone", [[1, 6, 3]], [])
    yield round_of("target alone, one id", [[0, 6, 0]], [])
    yield round_of("target alone, no mass", [[0, 0, 0]], [])
    yield round_of("q(x) = 0", [[1, 1, 1]] * 2, [[half, half, 0]], [2])
    yield round_of("no mass", [[0, 0], [1, 1]], [[half, half]])
    yield round_of("not the token that was drawn", [[1, 1], [1, 1]], [[half, half]], [0], seed=1)
    yield round_of("not the token that was drawn", [[1, 1], [1, 1]], [[half, half]], [1], seed=1)


def rounds() -> Iterator[Vector]:
    """The file ``verdicts``."""
    yield from chosen_rounds()
    yield from random_rounds()


# Laws over all words -----------------------------------------------------------------------------


def text_law(
    note: str,
    p: dict[str, list[int]],
    q: dict[str, list[int]],
    *,
    bits: int,
    depths: list[int],
    max_tokens: int,
    end_tokens: Sequence[int] = (),
) -> Vector:
    """A decoder with tables: rows by context ("0 1"; "*" for all others), the law of its texts.

    Depth of round n is ``depths[(n - 1) % len(depths)]``. Rows are such that finitely many words
    decide everything.
    """
    ending = laws.Ending(max_tokens, frozenset(end_tokens))

    def table(rows: dict[str, list[int]]) -> laws.Table:
        return lambda text: decisions.normalise(rows.get(" ".join(map(str, text)), rows["*"]))

    law = laws.decoder_law(
        table(p), table(q), lambda n, text: depths[(n - 1) % len(depths)], ending
    )
    assert law == laws.target_law(table(p), ending)
    return {
        "op": "text_law",
        "note": note,
        "bits": bits,
        "p": p,
        "q": q,
        "depths": depths,
        "max_tokens": max_tokens,
        "end_tokens": list(end_tokens),
        "law": {" ".join(map(str, text)): fraction(law[text]) for text in sorted(law)},
    }


def texts() -> Iterator[Vector]:
    """The file ``laws``."""
    far_p = {"*": [1, 3], "0": [3, 1], "0 1": [2, 2]}
    far_q = {"*": [2, 2], "1": [4, 0], "0": [0, 4]}
    mixed_p = {"*": [0, 2, 2], "1": [1, 1, 2], "2": [4, 0, 0]}
    mixed_q = {"*": [2, 1, 1], "1": [2, 0, 2], "2": [0, 4, 0]}
    one: dict[str, list[int]] = {"*": [4, 0]}
    for bits in (1, 2):
        yield text_law("far", far_p, far_q, bits=bits, depths=[1], max_tokens=2)
        yield text_law("mixed", mixed_p, mixed_q, bits=bits, depths=[1], max_tokens=2)
        yield text_law("p = q", far_p, far_p, bits=bits, depths=[1], max_tokens=2)
    yield text_law("depth 2", far_p, far_q, bits=1, depths=[2], max_tokens=2)
    yield text_law("a round alone", far_p, far_q, bits=2, depths=[1, 0], max_tokens=3)
    sure = {"*": [4, 0, 0], "1": [0, 0, 4]}
    yield text_law("greedy draft", mixed_p, sure, bits=2, depths=[2], max_tokens=2)
    yield text_law("one legal id", one, far_q, bits=2, depths=[2], max_tokens=2)
    yield text_law(
        "ends inside a proposal", far_p, far_q, bits=1, depths=[2], max_tokens=2, end_tokens=[0]
    )
