"""One forward pass for several sequences, in which each row has the bits that it has alone.

The new tokens of all sequences lie one behind another in a single row of tokens, each with its own
position. Everything that looks at one token alone is done for all at once; attention is done for
each sequence over its own keys, and a linear layer by a product that does not depend on its
company. So what a session is given never depends on who else is served.

That holds as long as passes succeed. Tokens that are fed in other portions may get other last
bits, so after a pass that failed the sequences of all that were in it are made again, and their
later rows may differ in them: they are still the q that their tokens are drawn from, and a seed
may give another text.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from draftwire.engines.hf.batch_support import check, why_not
from draftwire.engines.hf.sequence import CachedSequence, logits_width
from draftwire.engines.hf.states import taking
from draftwire.kernels.linear import RowProduct

_LOG: Final = logging.getLogger("draftwire.drafter")

ATTENTION: Final = "draftwire_rows"  # the name under which transformers finds the function below
FIXED_ROWS: Final = 16  # tokens of every pass where products are not ours: pads fill it up
_WHOLE_VECTORS: Final = 64  # elements; a multiple of what any processor takes at a time
_ACTIVATIONS: Final = ("torch.nn.modules.activation", "transformers.activations")
_ABSENT: Final = object()
_MEANS_NOTHING: Final = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position"}
)

Feed = tuple[CachedSequence, Sequence[int]]


@dataclass(slots=True)
class _Pass:
    """Where each sequence's new tokens lie, and its keys and values in every layer so far."""

    places: list[tuple[CachedSequence, int, int]]
    pads: int = 0
    held: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)


_PASS: ContextVar[_Pass] = ContextVar("draftwire_pass")


class _Caches(DynamicCache):
    """Stands for the caches of all sequences of a pass; it holds nothing of its own."""

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give each sequence its new keys and values, (1, heads, tokens, width) of all."""
        running = _PASS.get()
        running.held[layer] = [
            sequence.grow(key[:, :, begin:end], value[:, :, begin:end], layer)
            for sequence, begin, end in running.places
        ]
        return key, value


class _RowLinear(torch.nn.Module):
    """A linear layer on the CPU whose rows do not depend on one another."""

    def __init__(self, of: torch.nn.Linear, product: RowProduct) -> None:
        super().__init__()
        self.weight = of.weight
        self.bias = of.bias
        self.in_features, self.out_features = of.in_features, of.out_features
        self._product = product
        plain = of.weight.dtype is torch.float32 and of.weight.is_contiguous()
        self._matrix = of.weight.detach().numpy() if plain else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) of (..., in_features)."""
        rows = inputs.reshape(-1, self.in_features)
        if self._matrix is None:
            # In another precision: row by row, each by the product that it would have alone.
            out = torch.cat([linear(row[None], self.weight, self.bias) for row in rows])
        else:
            out = torch.empty(len(rows), self.out_features)
            self._product(rows.contiguous().numpy(), self._matrix, out.numpy())
            if self.bias is not None:
                out += self.bias
        return out.view(*inputs.shape[:-1], self.out_features)


class _RowActivation(torch.nn.Module):
    """An activation on the CPU, applied row by row.

    Over a whole tensor, the elements that fill no vector, or lie where another thread begins, are
    computed by another routine, and which ones those are depends on how many rows there are.
    """

    def __init__(self, of: torch.nn.Module) -> None:
        super().__init__()
        self._of = of
        self._alike = torch.get_num_threads() == 1  # then rows of whole vectors are alike

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the activation of (..., width)."""
        if self._alike and not inputs.shape[-1] % _WHOLE_VECTORS:
            return self._of(inputs)  # type: ignore[no-any-return]
        rows = inputs.reshape(-1, inputs.shape[-1])
        return torch.cat([self._of(row[None].contiguous()) for row in rows]).view(inputs.shape)


class BatchedModel:
    """Feeds new tokens to several sequences of one model in one pass.

    Shares the weights of ``model`` and changes nothing in it. On a CPU the passes have as many
    tokens as there are; elsewhere they are filled up to ``FIXED_ROWS``, so that every product has
    the same shape. Use ``batched``, which also tries it out.
    """

    def __init__(self, model: Any, *, fixed_rows: int = 0, invariant: bool = True) -> None:
        """Copy the structure of a model. fixed_rows: tokens of every pass; 0 = as many as come.

        invariant: False = the model's own products, whose rows differ in rounding with their
        company; faster, and enough for a target.
        """
        self.fixed_rows = fixed_rows
        tensors = [*model.parameters(), *model.buffers()]
        self.model = copy.deepcopy(model, {id(each): each for each in tensors})
        self.model.set_attn_implementation(ATTENTION)
        if not fixed_rows and invariant:
            _replace(self.model, RowProduct(torch.get_num_threads()))
        parameters = inspect.signature(model.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters and not fixed_rows
        self._device = model.device

    def forward(self, batch: Sequence[Feed], keep: Sequence[int] | None = None) -> torch.Tensor:
        """Feed at least one token to each sequence and return the logits after the last of each.

        keep: how many of the last of each; None = one. Returns binary32 (B, width), or
        (sum of keep, width), on the model's device. When the model raises, every sequence
        is as it was before.
        """
        if not self.fixed_rows:
            return self._pass(batch, keep)
        if keep is not None:
            raise ValueError("passes of a fixed size return one row a sequence")
        logits, together, size = [], list[Feed](), 0
        for feed in batch:
            if size + len(feed[1]) > self.fixed_rows:
                logits.append(self._pass(together))
                together, size = [], 0
            together.append(feed)
            size += len(feed[1])
        return torch.cat([*logits, self._pass(together)])

    def _pass(self, batch: Sequence[Feed], keep: Sequence[int] | None = None) -> torch.Tensor:
        tokens, positions, places = list[int](), list[int](), []
        for sequence, feed in batch:
            begin = len(tokens)
            tokens += feed
            positions += range(sequence.length, sequence.length + len(feed))
            places.append((sequence, begin, len(tokens)))
        pads = max(self.fixed_rows - len(tokens), 0)
        tokens += [0] * pads
        positions += [0] * pads
        kept = [1] * len(places) if keep is None else keep
        lasts = [
            row
            for (_, _, end), count in zip(places, kept, strict=True)
            for row in range(end - count, end)
        ]
        states = [sequence.states for sequence, _, _ in places]
        reset = _PASS.set(_Pass(places, pads))
        try:
            with taking(self.model, *states) as taken:
                rows = self._forward(tokens, positions, lasts)
        except BaseException:
            for sequence, _ in batch:
                sequence.settle()
            raise
        finally:
            _PASS.reset(reset)
        for keeping, (sequence, begin, end) in zip(states, places, strict=True):
            if keeping is not None:
                own = [taken.rows[layer][begin:end] for layer in keeping.layers]
                keeping.add(sequence.length, own)
        for sequence, feed in batch:
            sequence.settle(feed)
        return rows

    def _forward(self, tokens: list[int], positions: list[int], lasts: list[int]) -> torch.Tensor:
        every = len(lasts) == len(tokens)
        extra: dict[str, Any] = {self._cache_keyword: _Caches(), "use_cache": True}
        if self._keeps_logits and not every:
            extra["logits_to_keep"] = torch.tensor(lasts, device=self._device)
        with torch.inference_mode():
            logits: torch.Tensor = self.model(
                input_ids=torch.tensor([tokens], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                return_dict=True,
                **extra,
            ).logits[0]
            rows = logits if every or self._keeps_logits else logits[lasts]
            return rows.to(dtype=torch.float32, copy=True)


def packed(model: Any) -> BatchedModel | None:
    """Return what scores several sequences of a target in one pass, tried out, or None.

    Rows are the plain pass's but for rounding. Kept for as long as the model has these weights.
    """
    weights = tuple((id(each), each.data_ptr(), each.dtype) for each in model.parameters())
    kept = _PACKED.get(model)
    if kept is None or kept[0] != weights:
        kept = _PACKED[model] = weights, _tried(model, 0, invariant=False)
    return kept[1]


_PACKED: WeakKeyDictionary[Any, tuple[Any, BatchedModel | None]] = WeakKeyDictionary()


def batched(model: Any, *, fixed_rows: int | None = None) -> BatchedModel | None:
    """Return a batched model that was tried out, or None where this model has to run row by row.

    fixed_rows: None = as the device asks. Says in the log why not.
    """
    if fixed_rows is None:
        fixed_rows = 0 if model.device.type == "cpu" else FIXED_ROWS
    return _tried(model, fixed_rows, invariant=True)


def _tried(model: Any, fixed_rows: int, *, invariant: bool) -> BatchedModel | None:
    reason = why_not(model)
    if reason is None:
        try:
            made = BatchedModel(model, fixed_rows=fixed_rows, invariant=invariant)
            reason = check(
                made.forward,
                lambda: CachedSequence(model),
                logits_width(model),
                model.dtype,
                invariant=invariant,
            )
        except Exception as error:  # whatever a model that is not ours does
            reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return made
    _LOG.warning("sequences are computed one after another, not in batches: %s", reason)
    return None


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: Any = _ABSENT,
    is_causal: bool | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Attend for each sequence of the running pass over its own keys.

    query: (1, heads, tokens, width). Returns (1, tokens, heads, width). Raises ValueError for an
    argument whose meaning is not known here: then the model runs row by row.
    """
    unknown = [name for name, each in other.items() if each is not None]
    unknown = [name for name in unknown if name not in _MEANS_NOTHING]
    windowed = getattr(getattr(module, "config", None), "sliding_window", None)
    if windowed is not None and sliding_window is _ABSENT:
        unknown.append("a sliding window that is not told")
    if unknown or attention_mask is not None or dropout or is_causal is False:
        raise ValueError(f"attention of a kind that is not known: {', '.join(unknown) or 'masked'}")
    window = None if sliding_window is _ABSENT else sliding_window
    running = _PASS.get()
    outputs = []
    for (_, begin, end), (keys, values) in zip(
        running.places, running.held[module.layer_idx], strict=True
    ):
        rows = query[:, :, begin:end].contiguous()
        outputs.append(
            scaled_dot_product_attention(
                rows,
                keys,
                values,
                attn_mask=_mask(end - begin, keys.shape[2], window, query.device),
                scale=scaling,
                enable_gqa=rows.shape[1] != keys.shape[1],
            ).transpose(1, 2)
        )
    if running.pads:
        _, heads, _, _ = query.shape
        outputs.append(query.new_zeros(1, running.pads, heads, value.shape[-1]))
    return torch.cat(outputs, dim=1), None


def _mask(new: int, length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return which keys the last ``new`` of ``length`` tokens see, or None where all see all."""
    if new == 1 and (window is None or length <= window):
        return None
    at = torch.arange(length - new, length, device=device)[:, None]
    keys = torch.arange(length, device=device)[None]
    seen = keys <= at
    return seen if window is None else seen & (keys > at - window)


def _replace(module: torch.nn.Module, product: RowProduct) -> None:
    """Replace, inside a copied structure, what would make a row depend on its company."""
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            setattr(module, name, _RowLinear(child, product))
        elif type(child).__module__ in _ACTIVATIONS and not list(child.children()):
            setattr(module, name, _RowActivation(child))
        else:
            _replace(child, product)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
