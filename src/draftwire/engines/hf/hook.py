"""The two lines that make ``model.generate`` speculative: a drafter, and a decoding function.

::

    from draftwire.engines.hf import RemoteDrafter, remote_speculative

    drafter = RemoteDrafter.for_model("127.0.0.1:7711", model, tokenizer)
    model.generate(**inputs, do_sample=True, custom_generate=remote_speculative, drafter=drafter)
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Self, SupportsIndex, TypeAlias

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftwire.engines.hf.call import Row, policy_for, require_supported, rows_of
from draftwire.engines.hf.frames import DecodingFunction, streamer_of_generate
from draftwire.engines.hf.target import HfTargetEngine
from draftwire.errors import ConfigurationError
from draftwire.transport.tcp import Address
from draftwire.verifier import remote
from draftwire.verifier.drafter import Drafter
from draftwire.verifier.generate import generate
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy

Seeds: TypeAlias = SupportsIndex | Sequence[SupportsIndex | None] | None


class RemoteDrafter(remote.RemoteDrafter):
    """A drafter at an address, for a transformers model as target.

    See :class:`draftwire.verifier.remote.RemoteDrafter` for what its options are.
    """

    @classmethod
    def for_model(
        cls,
        address: Address | tuple[str, int] | str,
        model: Any,
        tokenizer: Any,
        *,
        identity: bytes | None = None,
        **options: Any,
    ) -> Self:
        """Return the drafter at ``address`` with the identities of ``model`` and ``tokenizer``.

        identity: of the target's checkpoint, 32 bytes (``identity.checkpoint_identity`` of its
        folder); None hashes the weights in memory, which reads all of them once. Raises
        ConfigurationError and ModelError; nothing is sent yet.
        """
        return cls(address, HfTargetEngine(model, tokenizer, identity=identity), **options)


@DecodingFunction
def remote_speculative(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: Drafter | None = None,
    policy: ProposalPolicy | None = None,
    seed: Seeds = None,
    reports: list[Report] | None = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode for ``model.generate(custom_generate=remote_speculative, drafter=...)``.

    The law of every row is that of ``model.generate`` without it; what comes back has the same
    form. Rows run one after another, each as a request of its own.

    drafter: where proposals come from; None, or a drafter that is away: the target alone. policy:
    how they are made; None: depth 5, a sparse layout of 32, and the request's own temperature,
    top-k, top-p and min-p. seed: 0..2^128-1 makes the call repeatable (row i uses stream i), or one
    seed a row (stream 0 each); None: fresh random bits. torch's own generator is neither read nor
    advanced: words depend on their address alone, never on what ran before. reports: receives a
    :class:`Report` a row. Raises ConfigurationError for what cannot be honoured: beams, attention
    or score outputs, a cache of the caller's, right padding, processors that keep state.
    """
    streamer = streamer_of_generate(model) if streamer is None else streamer
    try:
        require_supported(
            model, input_ids, generation_config, stopping_criteria, model_kwargs, streamer
        )
        rows = rows_of(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            model_kwargs,
            getattr(drafter, "vocab_size", None),
        )
        if policy is None:
            policy = policy_for(generation_config, rows[0].target.vocab_size)
        texts = [
            _decode(row, key, drafter, policy, streamer, reports)
            for row, key in zip(rows, _keys(seed, len(rows)), strict=True)
        ]
    finally:
        if streamer is not None:  # whatever was raised: its reader waits for the end
            streamer.end()
    sequences = _joined(input_ids, texts, generation_config._pad_token_tensor)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences


def _decode(
    row: Row,
    key: tuple[int | None, int],
    drafter: Drafter | None,
    policy: ProposalPolicy,
    streamer: Any,
    reports: list[Report] | None,
) -> list[int]:
    seed, stream = key
    sampling = Sampling(
        temperature=0.0 if row.target.greedy else 1.0,  # the processors hold the real one
        seed=seed,
        stream=stream,
        max_tokens=row.max_tokens,
    )
    with generate(row.target, drafter, row.prompt, sampling, policy, ends=row.ends) as running:
        for emission in running:
            if streamer is not None:
                streamer.put(torch.tensor([emission.token]))
    if reports is not None:
        reports.append(running.report)
    return list(running.tokens)


def _keys(seed: Seeds, rows: int) -> list[tuple[int | None, int]]:
    """Return (seed, stream) of each row; whole numbers and sequences of torch and NumPy as well."""
    if seed is None:
        return [(None, row) for row in range(rows)]
    try:
        return [(index(seed), row) for row in range(rows)]  # type: ignore[arg-type]
    except TypeError:  # no whole number, so one a row
        pass
    try:
        several = [None if one is None else index(one) for one in seed]  # type: ignore[union-attr]
    except TypeError as error:
        raise ConfigurationError("a seed is a whole number: give one, or one a row") from error
    if len(several) != rows:
        raise ConfigurationError(
            f"{len(several)} seeds for {rows} rows: give one a row, or a single one"
        )
    return [(one, 0) for one in several]


def _joined(input_ids: torch.Tensor, texts: Sequence[Sequence[int]], pad: Any) -> torch.Tensor:
    longest = max(map(len, texts))
    filled = [
        [*text, *[int(pad)] * (longest - len(text))] if len(text) < longest else text
        for text in texts
    ]
    made = torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)
    return torch.cat([input_ids, made], dim=-1)
