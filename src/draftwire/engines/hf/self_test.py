"""Whether p of a position depends on what stands before it alone, tried out on the model itself.

A few seeded ids are read with two tails behind them, cut into passes in several ways, rolled back,
and beside ``model.generate``. What differs by more than rounding explains is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from draftwire.engines.hf.causes import has_experts, of_generate, of_passes, of_tails
from draftwire.engines.hf.loader import first_line, quiet
from draftwire.engines.hf.rope import open_sequence
from draftwire.engines.hf.self_test_cache import cache_key, recall, remember
from draftwire.engines.hf.sequence import context_limit
from draftwire.errors import ModelError

REMEMBERED_FROM: Final = 500_000_000  # parameters; a smaller model is tried at every start
_PREFIX: Final = 12  # tokens
_TAIL: Final = 5
_SINGLE: Final = 4  # tokens at the prefix's end that are read one by one
_GENERATED: Final = 4  # rows of generate


@dataclass(frozen=True, slots=True)
class Figure:
    """How far two computations of the same rows are apart.

    variation: largest total variation of p. logit: largest distance of a logit, by the row's
    largest logit (at least 1).
    """

    variation: float = 0.0
    logit: float = 0.0

    def within(self, bound: Figure) -> bool:
        """Whether both are within a bound; NaN is not."""
        return self.variation <= bound.variation and self.logit <= bound.logit

    def worse(self, other: Figure) -> Figure:
        """Return the larger of each."""
        return Figure(max(self.variation, other.variation), max(self.logit, other.logit))

    def __str__(self) -> str:
        return f"{self.variation:.1e} in total variation, {self.logit:.1e} of the largest logit"


# Rounding to a unit u moves a logit by a multiple of u of the largest one; tens of layers, each
# with sums of thousands of terms, make some 16 of it (u: 2^-8 of bfloat16, 2^-11 of float16, TF32).
# Where no logit moves by more than d, p moves by at most tanh(d / 2) in total variation, and by far
# less where the many small errors are independent. binary32 has u = 2^-24: its bound leaves room
# for a hundred times as much, and is still far below what a true dependence does.
EXACT: Final = Figure(1e-4, 1e-4)
BOUNDS: Final = {torch.bfloat16: Figure(0.1, 16 * 2**-8), torch.float16: Figure(0.02, 16 * 2**-11)}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was found, all of it within the bounds.

    tails: the same pass with other tokens behind the position, against ``tails_bound``. passes: the
    same text in other passes, and generate: beside the rows of ``model.generate``, against
    ``bound``.
    """

    tails: Figure
    passes: Figure
    generate: Figure
    tails_bound: Figure
    bound: Figure

    def __str__(self) -> str:
        return (
            f"p moves by {self.tails.variation:.1e} with another tail (bound"
            f" {self.tails_bound.variation:.0e}), by {self.passes.variation:.1e} in other passes"
            f" and {self.generate.variation:.1e} beside generate (bound {self.bound.variation:.0e})"
        )


_known: weakref.WeakKeyDictionary[Any, dict[Any, SelfTest]] = weakref.WeakKeyDictionary()


def require_conforming(model: Any, vocab_size: int, identity: bytes = b"") -> SelfTest:
    """Return the figures of a model whose p depends on the tokens before it alone.

    vocab_size: ids below it are tried. identity: of the checkpoint; the figures of a model of
    ``REMEMBERED_FROM`` parameters or more are kept under it (``self_test_cache``). Raises
    ModelError with the cause, as far as it can be known, and the figure.
    """
    state = (model.device, model.dtype, getattr(model.config, "_attn_implementation", None))
    known = _known.setdefault(model, {})
    if state not in known:
        large = sum(each.numel() for each in model.parameters()) >= REMEMBERED_FROM
        key = cache_key(model, identity) if large and any(identity) else None
        found = None if key is None else _recalled(recall(key))
        if found is None:
            found = _tried(model, vocab_size)
            if key is not None:
                remember(key, asdict(found))
        known[state] = found
    return known[state]


def _tried(model: Any, vocab_size: int) -> SelfTest:
    name = type(model).__name__
    with quiet():
        try:
            probe = Probe.of(model, vocab_size)
        except Exception as error:  # whatever a model that is not ours does
            raise ModelError(
                f"{name} cannot be read token by token ({type(error).__name__}:"
                f" {first_line(error)}): it has to take ids alone, and a cache"
            ) from error
    bound = _bound(model)
    tails_bound = bound if has_experts(model) else EXACT
    if not probe.tails.within(tails_bound):
        raise ModelError(
            f"{name}: this model's numbers depend on later tokens of the same pass, so no draft can"
            f" be verified exactly: {of_tails(model)}; p of a position moves by {probe.tails} with"
            f" another tail (bound {tails_bound})"
        )
    if not (probe.held and probe.passes.within(bound)):
        raise ModelError(
            f"{name}: this model's numbers depend on how a text is cut into passes, so no draft can"
            f" be verified exactly: {of_passes(model, probe.held, probe.fed)}; p of a position"
            f" moves by {probe.passes} (bound {bound})"
        )
    if not probe.generate.within(bound):
        raise ModelError(
            f"{name}: its rows for token ids are not those of model.generate:"
            f" {of_generate(probe.inputs)}; p of a position moves by {probe.generate}"
            f" (bound {bound})"
        )
    return SelfTest(probe.tails, probe.passes, probe.generate, tails_bound, bound)


@dataclass(frozen=True, slots=True)
class Probe:
    """What was computed: distances, positions held of those fed, and what generate passes."""

    tails: Figure
    passes: Figure
    generate: Figure
    held: list[int]
    fed: int
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any, vocab_size: int) -> Probe:
        """Compute all of it; raises whatever the model raises."""
        prefix, tail, other = _ids(model, vocab_size)
        end = len(prefix)
        whole, swapped = _read(model, [*prefix, *tail]), _read(model, [*prefix, *other])
        tails = _distance(whole[:end], swapped[:end])
        single = max(1, end - _SINGLE)
        cut = open_sequence(model)
        rows = [cut.forward(prefix[:single], single)]
        rows += [cut.forward([token]) for token in [*prefix[single:], *tail[:1]]]
        rows += [cut.forward(tail[1:], len(tail) - 1)] if tail[1:] else []
        held, fed = cut.layer_lengths(), cut.length
        passes = _distance(torch.cat(rows).cpu(), whole)
        cut.truncate(end)
        passes = passes.worse(_distance(cut.forward(other, len(other)).cpu(), swapped[end:]))
        rows_of_generate, inputs = _generated(model, prefix, tail)
        beside = whole[end - 1 : end - 1 + len(rows_of_generate)]
        return cls(tails, passes, _distance(beside, rows_of_generate), held, fed, inputs)


def _read(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the rows of one pass, (n, width) binary32."""
    return open_sequence(model).forward(ids, len(ids)).cpu()


class _Forced(LogitsProcessor):
    """Makes ``generate`` take given tokens."""

    def __init__(self, begin: int, tokens: Sequence[int]) -> None:
        self._begin, self._tokens = begin, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._tokens[input_ids.shape[-1] - self._begin]] = 0
        return forced


def _generated(
    model: Any, prefix: Sequence[int], tail: Sequence[int]
) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Return the rows of ``generate`` after the prefix and the tail's first tokens, and its inputs.

    The inputs are the arguments of its first pass.
    """
    ids = torch.tensor([list(prefix)], dtype=torch.long, device=model.device)
    inputs: list[Mapping[str, Any]] = []
    watch = model.register_forward_pre_hook(
        lambda module, args, kwargs: inputs.append(kwargs), with_kwargs=True
    )
    try:
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=min(_GENERATED, len(tail)),
            logits_processor=LogitsProcessorList([_Forced(len(prefix), tail)]),
            output_logits=True,
            return_dict_in_generate=True,
        )
    finally:
        watch.remove()
    return torch.cat(made.logits).float().cpu(), inputs[0] if inputs else {}


def _ids(model: Any, vocab_size: int) -> tuple[list[int], list[int], list[int]]:
    """Return a prefix and two tails that differ in each token; no id with a meaning of its own."""
    kept = {id_ for named in _configs(model) for id_ in _special(named)}
    plain = [each for each in range(min(vocab_size, 1 << 17)) if each not in kept]
    plain = plain if len(plain) > 1 else list(range(max(vocab_size, 1)))
    room = context_limit(model)
    tail = max(1, min(_TAIL, room - 2))
    prefix = max(1, min(_PREFIX, room - tail))
    random = Random(_PREFIX)
    at = [random.randrange(len(plain)) for _ in range(prefix + tail)]
    steps = [random.randrange(1, max(len(plain), 2)) for _ in range(tail)]
    text = [plain[each] for each in at]
    other = [
        plain[(each + step) % len(plain)] for each, step in zip(at[prefix:], steps, strict=True)
    ]
    return text[:prefix], text[prefix:], other


def _configs(model: Any) -> list[Mapping[str, Any]]:
    found = [model.config, model.config.get_text_config(decoder=True)]
    generation = getattr(model, "generation_config", None)
    return [each.to_dict() for each in (*found, generation) if each is not None]


def _special(named: Mapping[str, Any]) -> list[int]:
    values = [
        value for name, value in named.items() if name.endswith(("token_id", "token_ids", "_index"))
    ]
    return [
        each
        for value in values
        for each in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(each, int)
    ]


def _bound(model: Any) -> Figure:
    """Return the bound of the coarsest arithmetic that a model's weights and torch may use."""
    types = {each.dtype for each in model.parameters() if each.is_floating_point()}
    coarse = [BOUNDS[torch.bfloat16] for each in types if each.itemsize == 1]
    coarse += [BOUNDS[each] for each in types if each in BOUNDS]
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":  # TF32, or bfloat16, in the products of binary32
        coarse.append(BOUNDS[torch.float16 if precision == "high" else torch.bfloat16])
    bound = EXACT
    for each in coarse:
        bound = bound.worse(each)
    return bound


def _distance(rows: torch.Tensor, others: torch.Tensor) -> Figure:
    """Return how far rows of logits are apart; equal infinities and NaNs are not."""
    one, two = rows.double(), others.double()
    apart = torch.where(one.eq(two) | (one.isnan() & two.isnan()), 0.0, (one - two).abs())
    scale = one.nan_to_num(0, 0, 0).abs().amax(-1, keepdim=True).clamp(min=1)
    variation = 0.5 * (one.softmax(-1) - two.softmax(-1)).abs().sum(-1)
    if torch.equal(one.isnan(), two.isnan()):
        variation = variation.nan_to_num(0.0)  # a row without a law on both sides
    return Figure(float(variation.amax()), float((apart / scale).amax()))


def _recalled(values: Any) -> SelfTest | None:
    """Return what a file held, or None for what no self-test has written."""
    try:
        figures = {
            name: Figure(float(each["variation"]), float(each["logit"]))
            for name, each in values.items()
        }
        found = SelfTest(**figures)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    whole = found.tails.within(found.tails_bound) and found.passes.worse(found.generate).within(
        found.bound
    )
    return found if whole else None
