"""Rope tables that switch with the length of a text: where they do, and how rows stay exact.

LongRoPE has a table for texts up to a border and another beyond it, dynamic NTK one for every
length beyond it; transformers chooses by the largest position of a pass. So the rows of one pass
across the border are not those that each prefix has alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from draftwire.engines.hf.sequence import CachedSequence, context_limit
from draftwire.engines.hf.states import KeptStates
from draftwire.errors import ConfigurationError

_SWITCHING: Final = ("longrope", "dynamic")
_NEAR: Final = 1024  # tokens beyond the border, after which the first reading is given up


@dataclass(frozen=True, slots=True)
class RopeBorder:
    """Where a model's rope table switches.

    length: the longest text with the first table. read_again: whether the model's own ``generate``
    reads the whole text again with the second table when it passes the border (Phi-3, Phi-3.5-MoE,
    Phi-4); then p of a position depends on the text before it alone, and is had exactly.
    """

    kind: str
    length: int
    read_again: bool


def rope_border(model: Any) -> RopeBorder | None:
    """Return where the model's rope table switches, or None where it never does."""
    config = model.config.get_text_config(decoder=True)
    found = [
        (int(each.get("original_max_position_embeddings") or 0), str(each["rope_type"]))
        for each in _tables(getattr(config, "rope_parameters", None))
        if each["rope_type"] in _SWITCHING
    ]
    if not found:
        return None
    longest = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
    # Dynamic NTK grows beyond max_position_embeddings, whatever else the configuration says.
    borders = [
        (length if kind == "longrope" and length else longest, kind) for length, kind in found
    ]
    length, kind = min(borders)
    prepare = getattr(type(model), "prepare_inputs_for_generation", None)
    code = getattr(inspect.unwrap(prepare), "__code__", None) if prepare is not None else None
    names = getattr(code, "co_names", ())
    read_again = kind == "longrope" and "original_max_position_embeddings" in names
    return RopeBorder(kind, length, read_again)


def require_within_border(model: Any, most: int) -> None:
    """Refuse a text of up to ``most`` tokens whose rows would depend on how it is cut into passes.

    Raises ConfigurationError with the cause and the border.
    """
    border = rope_border(model)
    if border is not None and not border.read_again and most > border.length:
        raise ConfigurationError(
            f"this model's numbers depend on later tokens of the same pass: rope type {border.kind}"
            f" switches its table at {border.length} tokens, and the text may have {most}; keep"
            f" prompt and max_new_tokens within {border.length} together"
        )


def exact_context(model: Any) -> int:
    """Return the most tokens of a text whose rows are exact here; see ``context_limit``."""
    border, limit = rope_border(model), context_limit(model)
    return limit if border is None or border.read_again else min(limit, border.length)


def open_sequence(model: Any) -> ModelSequence:
    """Return a new sequence of a model, one that is exact on both sides of a rope border."""
    border = rope_border(model)
    if border is None or not border.read_again:
        return CachedSequence(model)
    return BorderedSequence(model, border.length)


class BorderedSequence:
    """One sequence of a model whose rope table switches at a border: a reading with each table.

    The same operations as :class:`CachedSequence`. No pass crosses the border with the first table:
    rows up to it come from a reading that never passes it, and rows beyond it from another, of the
    whole text, whose every pass ends beyond it. So each row is what ``generate``, which reads
    everything again there, computes for its prefix.
    """

    def __init__(self, model: Any, border: int) -> None:
        """Begin with no tokens. border: the longest text with the first table."""
        self._border = border
        self._tokens: list[int] = []
        self._short, self._long = CachedSequence(model), CachedSequence(model)

    @property
    def length(self) -> int:
        """Tokens that have been fed."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that have been fed."""
        return tuple(self._tokens)

    @property
    def bytes(self) -> int:
        """Memory of both readings."""
        return self._short.bytes + self._long.bytes

    @property
    def states(self) -> KeptStates | None:
        """What is kept of the states that either reading computes; the last one's of a position."""
        return self._short.states

    @states.setter
    def states(self, kept: KeptStates | None) -> None:
        self._short.states = self._long.states = kept

    def layer_lengths(self) -> list[int]:
        """Return the number of positions that each layer of the reading in use holds."""
        return (self._long if self.length > self._border else self._short).layer_lengths()

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ConfigurationError when it holds fewer."""
        if not 0 <= length <= len(self._tokens):
            raise ConfigurationError(
                f"cannot return to {length} tokens: the sequence holds {len(self._tokens)}"
            )
        del self._tokens[length:]
        for reading in (self._short, self._long):
            reading.truncate(min(length, reading.length))

    def truncate_to_prefix_of(self, ids: Sequence[int]) -> None:
        """Keep the longest prefix shared with ``ids``, but never all of ``ids``."""
        limit = min(len(self._tokens), len(ids) - 1)
        pairs = zip(self._tokens[:limit], ids, strict=False)
        shared = next((at for at, (mine, other) in enumerate(pairs) if mine != other), limit)
        self.truncate(shared)

    def forward(self, tokens: Sequence[int], keep: int = 1) -> torch.Tensor:
        """Feed ``tokens`` (at least one) and return the logits after each of the last ``keep``.

        Returns binary32 (keep, width), as :meth:`CachedSequence.forward` does. When the model
        raises, the sequence is as it was before.
        """
        ids = [*self._tokens, *tokens]
        beyond = min(keep, max(len(ids) - self._border, 0))  # kept rows of the second table
        rows = []
        try:
            if keep > beyond:
                within = ids[self._short.length : self._border]
                rows.append(self._short.forward(within, keep - beyond))
            if beyond:
                rows.append(self._long.forward(ids[self._long.length :], beyond))
        except BaseException:
            self.truncate(len(self._tokens))
            raise
        self._tokens = ids
        if len(ids) > self._border + _NEAR:
            self._short.truncate(0)
        return torch.cat(rows)


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every set of rope parameters, one a model or one a kind of layer."""
    if isinstance(value, Mapping):
        if "rope_type" in value:
            yield value
        else:
            for each in value.values():
                yield from _tables(each)


ModelSequence: TypeAlias = CachedSequence | BorderedSequence
