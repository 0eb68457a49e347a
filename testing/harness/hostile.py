"""A drafter that knows the text and is wrong on purpose: rejected at every place of a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.verifier.local import LocalDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.toys.models import ToyDrafter

DEPTH: Final = 4
POLICY: Final = ProposalPolicy(Layout.DENSE, DEPTH, 1.0)
# Offsets in the text at which a wrong token is proposed. Rounds begin at offsets 0, 1, 3, 6, 10
# and 15, and accept 0, 1, 2, 3, 4 and 0 drafts.
WRONG: Final = frozenset({0, 2, 5, 9, 15})
LENGTH: Final = 17


def hostile_drafter(engine: Any, prompt: Sequence[int], text: Sequence[int]) -> LocalDrafter:
    """Return a drafter for a target that proposes ``text`` after ``prompt``, wrong at ``WRONG``."""

    def table(context: tuple[int, ...]) -> list[float]:
        at = len(context) - len(prompt)
        right = text[at] if at < len(text) else 0
        token = (right + 1 + at % 3) % engine.vocab_size if at in WRONG else right
        return [float(each == token) for each in range(engine.vocab_size)]

    toy = ToyDrafter(
        table,
        engine.vocab_size,
        tokenizer_hash=engine.tokenizer_hash,
        id_map_hash=engine.id_map_hash,
    )
    program = DrafterProgram(toy, DrafterConfig(max_support=engine.vocab_size))
    return LocalDrafter(program, engine)
