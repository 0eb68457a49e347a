"""Which models can be run in batches whose rows have the bits that they have alone, and a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from draftwire.engines.hf.sequence import CachedSequence

_POSITIONS: Final = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
_LAYERS: Final = frozenset({"full_attention", "sliding_attention"})
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
# Largest distance of a logit from that of the plain pass, by the largest logit: between rounding
# in other orders and another function, there is room.
_NEAR: Final = {torch.float16: 0.05, torch.bfloat16: 0.2}
_NEAR_OTHERWISE: Final = 1e-3

_FEEDS: Final = ((3, 5, 2, 7, 4), (6,), (2, 9), (5, 5, 8), (1,))
_COMPANIES: Final = ((0, 1, 2, 3, 4), (4, 1), (2, 4, 0, 3, 1) * 3)

Forward = Callable[[Sequence[tuple[CachedSequence, Sequence[int]]]], torch.Tensor]


def why_not(model: Any) -> str | None:
    """Return what about a model's structure makes a row depend on its company, or None."""
    config = model.config.get_text_config(decoder=True)
    if any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS):
        return "its experts are chosen for a batch as a whole"
    if getattr(config, "final_logit_softcapping", None):
        return "its logits are capped over a batch as a whole"
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "attention_chunk_size", None) or not kinds <= _LAYERS:
        return "it has layers that are neither full nor sliding attention"
    scalings = set(_named("rope_type", getattr(config, "rope_parameters", None)))
    if not scalings <= _POSITIONS:
        return "its positions are scaled by the longest sequence of a batch"
    for name, module in model.named_modules():
        known = type(module) is torch.nn.Linear or isinstance(module, torch.nn.Embedding)
        if not known and any(each.ndim > 1 for each in module.parameters(recurse=False)):
            return f"{name} is no linear layer that is known"
    return None


def check(
    forward: Forward,
    open: Callable[[], CachedSequence],
    vocab_size: int,
    dtype: torch.dtype,
    *,
    invariant: bool = True,
) -> str | None:
    """Try batches out beside passes of one sequence; return what is wrong, or None.

    forward: feeds a batch, returns binary32 (B, V). open: returns a new sequence, whose own
    ``forward`` is the plain pass. dtype: of the model. Each row of a batch must have the bits that
    it has alone, in three companies and two passes, and be near to the plain pass; without
    ``invariant``, in one company, near to the plain pass alone.
    """
    if not invariant:
        together = _run(forward, open, _COMPANIES[0], vocab_size)
        return _far_from_plain(together, open, vocab_size, dtype)
    alone = [_run(forward, open, (index,), vocab_size)[0] for index in range(len(_FEEDS))]
    far = _far_from_plain(alone, open, vocab_size, dtype)
    if far is not None:
        return far
    for company in _COMPANIES:
        for index, rows in zip(company, _run(forward, open, company, vocab_size), strict=True):
            if not torch.equal(rows.view(torch.int32), alone[index].view(torch.int32)):
                return "a row has other bits in other company"
    return None


def _far_from_plain(
    found: Sequence[torch.Tensor],
    open: Callable[[], CachedSequence],
    vocab_size: int,
    dtype: torch.dtype,
) -> str | None:
    for index, rows in enumerate(found):
        plain = _plain(open(), index, vocab_size)
        near = _NEAR.get(dtype, _NEAR_OTHERWISE) * float(plain.nan_to_num(0, 0, 0).abs().max())
        if not torch.allclose(rows, plain, rtol=0, atol=near, equal_nan=True):
            return "another function comes out than in a plain pass"
    return None


def _run(
    forward: Forward, open: Callable[[], CachedSequence], company: Sequence[int], vocab_size: int
) -> list[torch.Tensor]:
    """Return the rows of each sequence of a company, (2, V) each, after two passes."""
    sequences = [open() for _ in company]
    passes = [
        forward([(each, feed) for each, feed in zip(sequences, feeds, strict=True)]).cpu()
        for feeds in zip(*(_feeds(index, vocab_size) for index in company), strict=True)
    ]
    return list(torch.stack(passes).unbind(1))


def _plain(sequence: CachedSequence, index: int, vocab_size: int) -> torch.Tensor:
    return torch.cat([sequence.forward(feed).cpu() for feed in _feeds(index, vocab_size)])


def _feeds(index: int, vocab_size: int) -> list[list[int]]:
    """Return what is fed to a sequence in two passes: several tokens, then one."""
    ids = [[*_FEEDS[index]], [index + 2]]
    return [[each % vocab_size for each in feed] for feed in ids]


def _named(name: str, value: Any) -> Iterator[str]:
    """Yield every value under ``name`` in nested mappings."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == name:
                yield str(each)
            else:
                yield from _named(name, each)
