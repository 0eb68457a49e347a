"""One token of a text as it is emitted: what it is and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from draftwire.verifier.stop import Finish
from draftwire.wire.registry import Outcome


class Kind(Enum):
    """Where a token of the text came from."""

    ACCEPTED = "accepted"
    CORRECTED = "corrected"
    BONUS = "bonus"
    TARGET_ONLY = "target_only"


@dataclass(frozen=True, slots=True)
class Emission:
    """One token of the text.

    index: its place, from 0. finish: why the text ends here, or None. text: what has become certain
    of the text with it, where ``decode`` was given: a character, or the beginning of a stop string,
    may wait for later tokens.
    """

    token: int
    kind: Kind
    index: int
    finish: Finish | None = None
    text: str = ""


# Of the token behind the accepted drafts; where the text ends with a draft there is none.
KIND_AFTER: Final = {
    Outcome.CORRECTION: Kind.CORRECTED,
    Outcome.BONUS: Kind.BONUS,
    Outcome.TARGET_ONLY: Kind.TARGET_ONLY,
}
