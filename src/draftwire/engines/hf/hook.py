"""The two lines that make ``model.generate`` speculative: a drafter, and a decoding function.

::

    from draftwire.engines.hf import RemoteDrafter, remote_speculative

    drafter = RemoteDrafter.for_model("127.0.0.1:7711", model, tokenizer)
    model.generate(**inputs, do_sample=True, custom_generate=remote_speculative, drafter=drafter)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from operator import index
from typing import Any, Self, SupportsIndex, TypeAlias

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftwire.engines.hf.call import (
    Row,
    cache_of,
    policy_for,
    require_decodable,
    require_supported,
    rows_of,
)
from draftwire.engines.hf.frames import DecodingFunction, streamer_of_generate
from draftwire.engines.hf.target import HfTargetContext, HfTargetEngine, score_together
from draftwire.engines.hf.undrafted import decode_undrafted, other_inputs
from draftwire.errors import ConfigurationError
from draftwire.transport.tcp import Address
from draftwire.verifier import remote
from draftwire.verifier.client import DraftClient
from draftwire.verifier.drafter import Drafter
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.together import run_together
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
    depth: int | None = None,
    seed: Seeds = None,
    reports: list[Report] | None = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode for ``model.generate(custom_generate=remote_speculative, drafter=...)``.

    The law of every row is that of ``model.generate`` without it; what comes back has the same
    form. Each row is a request of its own. A round of all rows is one pass of the target, where its
    class can be packed and the drafter takes as many sessions; a streamer takes one row.

    drafter: where proposals come from; None, or a drafter that is away: the target alone. policy:
    how they are made; None: depth 5, a sparse layout of 32, and the request's own temperature,
    top-k, top-p and min-p. depth: of this call, in place of the policy's; 0: not drafted. seed:
    0..2^128-1 makes the call repeatable (row i uses stream i), or one seed a row (stream 0 each);
    None: fresh random bits. torch's own generator is neither read nor advanced: words depend on
    their address alone, never on what ran before. reports: receives a :class:`Report` a row.
    ``output_scores`` and ``output_logits`` are the target's own, at the place that each token was
    taken from; zeros behind the end of a row. A call that gives the model more than ids
    (``token_type_ids``, ``pixel_values``) is decoded by ``generate`` itself, undrafted, and its
    reports say so; a seed repeats it as a whole. Raises ConfigurationError for what cannot be
    honoured: embeddings in the place of ids, beams, attention outputs, right padding, processors
    whose state cannot be copied, a cache that does not hold every position of one unpadded row.
    One that does is gone on from, and holds the text without its last token afterwards.
    """
    streamer = streamer_of_generate(model) if streamer is None else streamer
    try:
        require_decodable(model, generation_config)
        keys = _keys(seed, len(input_ids))
        others = other_inputs(model_kwargs)
        if others:
            output, made = decode_undrafted(
                model,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                model_kwargs,
                others=others,
                keys=keys,
                streamer=streamer,
            )
            streamer = None  # it has ended
            if reports is not None:
                reports += made
            return output
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
            cache_of(model, input_ids, generation_config, model_kwargs),
        )
        if policy is None:
            policy = policy_for(generation_config, rows[0].target.vocab_size)
        texts = _texts(model, rows, keys, drafter, policy, depth, streamer, reports)
    finally:
        if streamer is not None:  # whatever was raised: its reader waits for the end
            streamer.end()
    sequences = _joined(input_ids, texts, generation_config._pad_token_tensor)
    if not generation_config.return_dict_in_generate:
        return sequences
    return _output(sequences, rows, texts, generation_config)


def _texts(
    model: Any,
    rows: Sequence[Row],
    keys: Sequence[tuple[int | None, int]],
    drafter: Drafter | None,
    policy: ProposalPolicy,
    depth: int | None,
    streamer: Any,
    reports: list[Report] | None,
) -> list[Sequence[int]]:
    """Return the text of each row, as many together as the drafter takes."""
    together = len(rows) if drafter is None else _most_together(drafter, len(rows))
    texts: list[Sequence[int]] = []
    for begin in range(0, len(rows), together):
        some = slice(begin, begin + together)
        with ExitStack() as opened:
            running = []
            for row, key in zip(rows[some], keys[some], strict=True):
                text = opened.enter_context(_begin(row, key, drafter, policy, depth))
                opened.callback(row.leave, text)  # whatever is raised
                running.append(text)
            _run(model, running, None if depth == 0 else drafter, streamer)
        texts += [each.tokens for each in running]
        if reports is not None:
            reports += [each.report for each in running]
    return texts


def _output(
    sequences: torch.Tensor, rows: Sequence[Row], texts: Sequence[Sequence[int]], config: Any
) -> GenerateDecoderOnlyOutput:
    for row, text in zip(rows, texts, strict=True):
        row.target.context.rows.settle(len(row.prompt) + len(text))
    kept = [row.target.context.rows for row in rows]
    # transformers 5 renamed the field on the way
    names = GenerateDecoderOnlyOutput.__dataclass_fields__
    cache = {"cache" if "cache" in names else "past_key_values": rows[0].target.cache}
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_steps([each.scores for each in kept]) if config.output_scores else None,
        logits=_steps([each.logits for each in kept]) if config.output_logits else None,
        **cache,
    )


def _begin(
    row: Row,
    key: tuple[int | None, int],
    drafter: Drafter | None,
    policy: ProposalPolicy,
    depth: int | None,
) -> Generation[HfTargetContext]:
    seed, stream = key
    sampling = Sampling(
        temperature=0.0 if row.target.greedy else 1.0,  # the processors hold the real one
        seed=seed,
        stream=stream,
        max_tokens=row.max_tokens,
    )
    return generate(row.target, drafter, row.prompt, sampling, policy, depth=depth, ends=row.ends)


def _run(
    model: Any,
    running: Sequence[Generation[HfTargetContext]],
    drafter: Drafter | None,
    streamer: Any,
) -> None:
    if len(running) > 1:
        run_together(running, partial(score_together, model), drafter)
        return
    for emission in running[0]:
        if streamer is not None:
            streamer.put(torch.tensor([emission.token]))


def _most_together(drafter: Drafter, rows: int) -> int:
    """Return how many of a call's rows a drafter takes at a time, so that none goes without."""
    if rows > 1 and isinstance(drafter, DraftClient):
        drafter.ensure_connected()
        agreed = drafter.agreed
        if agreed is not None:
            return max(min(agreed.max_sessions, agreed.max_slots, rows), 1)
    return rows


def _steps(rows: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Return (B, width) a step; zeros where a row has ended before."""
    steps = range(max(map(len, rows)))
    nothing = torch.zeros_like(rows[0][0])
    return tuple(
        torch.stack([row[step] if step < len(row) else nothing for row in rows]) for step in steps
    )


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
