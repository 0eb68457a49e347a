"""Our rejection sampler in the place of vLLM's: p as vLLM makes it, q as counts, words by address.

vLLM lays the rows of a step out request by request: one for each scheduled draft and one for what
comes after them. All of them go through vLLM's own processors together, as if a request had one
draft more than it has, so that the last row, too, is processed with the drafts before it in place.
(vLLM's own speculative path hands that row to its plain sampler, where min_tokens counts without
the drafts.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import (
    PLACEHOLDER_TOKEN_ID,
    RejectionSampler,
    apply_sampling_constraints,
)
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from draftwire.engines.vllm.constraints import add_bias, cut_min_p, cut_top
from draftwire.engines.vllm.policy import GREEDY_BELOW
from draftwire.engines.vllm.proposer import Proposer
from draftwire.engines.vllm.speculation import VerifyRequest

Share = Callable[[torch.Tensor], torch.Tensor]
"""Makes the deciding rank's tensor that of every rank."""


class Sampler(RejectionSampler):
    """Replaces ``runner.rejection_sampler``. runner: the V1 model runner that it samples for."""

    def __init__(self, runner: Any, proposer: Proposer, share: Share) -> None:
        """Take the place of the runner's sampler; its plain sampler stays as it is."""
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self._runner = runner
        self._proposer = proposer
        self._share = share

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """Return the tokens of every request, (B, most drafts + 1) int32, -1 behind the last.

        logits: (drafts + B, V), used up. draft_probs is not used: q is held as counts.
        """
        names = self._runner.input_batch.req_ids
        if len(names) != len(metadata.num_draft_tokens):  # vLLM warms up without requests
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        shape = (len(names), metadata.max_spec_len + 1)
        tokens = np.full(shape, PLACEHOLDER_TOKEN_ID, np.int32)
        logprobs = None
        if self._proposer.speculation is not None:
            raw = logits.to(torch.float32)
            shown = self._shows_logprobs(sampling_metadata)
            copied = raw.clone() if shown and not self.is_processed_logprobs_mode else raw
            scores = self._scores(metadata, copied, sampling_metadata)
            self._verify(tokens, metadata, scores, sampling_metadata)
            if shown:
                kept = scores if self.is_processed_logprobs_mode else raw
                logprobs = self._logprobs(metadata, kept, tokens, sampling_metadata)
        shared = self._share(torch.from_numpy(tokens)).to(logits.device)
        return SamplerOutput(sampled_token_ids=shared, logprobs_tensors=logprobs)

    def _scores(
        self,
        metadata: SpecDecodeMetadata,
        rows: torch.Tensor,
        sampling: SamplingMetadata,
    ) -> torch.Tensor:
        """Return the logits of p at every row, after all of vLLM's processors; ``rows`` is used up.

        A row conditioned on n drafts is processed with those n in the output.
        """
        counts = [count + 1 for count in metadata.num_draft_tokens]
        known, names = self._runner.requests, self._runner.input_batch.req_ids
        asked = [known[name].sampling_params for name in names]
        add_bias(rows, asked, counts)
        drafts = sampling.spec_token_ids or [[] for _ in counts]
        holder = sampling.thinking_budget_state_holder
        one_more = replace(metadata, num_draft_tokens=counts)
        rows = self.apply_logits_processors(
            rows,
            replace(
                sampling,
                spec_token_ids=[[*spec, PLACEHOLDER_TOKEN_ID] for spec in drafts],
                thinking_budget_state_holder=None,
            ),
            one_more,
        )
        if holder is not None and holder.has_tracked_requests():
            holder.update_state(sampling.output_token_ids, drafts, repeat_indices=None)
            for indices, bonus in (
                (metadata.target_logits_indices, False),
                (metadata.bonus_logits_indices, True),
            ):
                part = rows[indices.long()]
                rows[indices.long()] = holder.apply_to_logits(part, bonus, drafts)
        scores: torch.Tensor = apply_sampling_constraints(  # temperature; the rest is ours
            rows, metadata.cu_num_sampled_tokens, replace(sampling, top_k=None, top_p=None)
        )
        if not sampling.all_greedy:
            cut_min_p(scores, asked, counts)
            cut_top(scores, sampling.top_k, sampling.top_p, counts)
        return scores

    def _verify(
        self,
        tokens: np.ndarray[Any, Any],
        metadata: SpecDecodeMetadata,
        scores: torch.Tensor,
        sampling: SamplingMetadata,
    ) -> None:
        """Fill in the tokens of every request; chunks of a prompt commit nothing."""
        speculation = self._proposer.speculation
        assert speculation is not None
        drafts = metadata.draft_token_ids.tolist()
        discarded = self._runner.discard_request_mask.np
        temperature = sampling.temperature
        greedy = None if temperature is None else (temperature < GREEDY_BELOW).tolist()
        places: list[int] = []
        requests: list[VerifyRequest] = []
        row = draft = 0
        for index, count in enumerate(metadata.num_draft_tokens):
            if discarded[index]:
                tokens[index, 0] = 0  # vLLM takes it away again
            else:
                places.append(index)
                requests.append(
                    VerifyRequest(
                        self._proposer.active(index),
                        row,
                        drafts[draft : draft + count],
                        greedy=greedy is None or greedy[index],
                    )
                )
            row, draft = row + count + 1, draft + count
        committed = speculation.verify_step(scores, requests)
        for index, each in zip(places, committed, strict=True):
            tokens[index, : len(each)] = each

    @staticmethod
    def _shows_logprobs(sampling: SamplingMetadata) -> bool:
        """Whether a client asked to see any."""
        return sampling.max_num_logprobs is not None or bool(sampling.logprob_token_ids)

    def _logprobs(
        self,
        metadata: SpecDecodeMetadata,
        rows: torch.Tensor,
        tokens: np.ndarray[Any, Any],
        sampling: SamplingMetadata,
    ) -> LogprobsTensors:
        """Return what a client asked to see, for every place of ``tokens``, in vLLM's own form.

        A request sees its largest, or the ids it names; vLLM's own rejection sampler forgets those.
        """
        largest, named = sampling.max_num_logprobs, sampling.logprob_token_ids
        width = tokens.shape[1]
        counts = torch.tensor(metadata.num_draft_tokens) + 1
        first = torch.cumsum(counts, 0) - counts
        places = first[:, None] + torch.arange(width)[None, :]
        places = places.flatten().clamp_(max=len(rows) - 1).to(rows.device)
        shown = rows[places]
        if not self.is_logits_logprobs_mode:
            shown = self.sampler.compute_logprobs(shown)
        chosen = torch.from_numpy(np.maximum(tokens, 0).astype(np.int64)).flatten()
        chosen = chosen.to(rows.device)
        found = self.sampler.gather_logprobs(shown, largest or 0, chosen)
        if not named:
            return found
        of_place = {
            index * width + place: ids for index, ids in named.items() for place in range(width)
        }
        return _put(found, self.sampler.gather_specific_token_logprobs(shown, of_place, chosen))


def _put(found: LogprobsTensors, named: LogprobsTensors) -> LogprobsTensors:
    """Return ``found`` with the rows of ``named`` that name anything in their places.

    Both have the token of the text in column 0; the narrower one is filled up with what vLLM takes
    for nothing.
    """
    width = max(found.logprobs.shape[1], named.logprobs.shape[1])

    def widened(values: torch.Tensor, nothing: float) -> torch.Tensor:
        return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=nothing)

    of_named = (named.logprobs[:, 1:] > -torch.inf).any(1, keepdim=True)
    ids = widened(named.logprob_token_ids, 0), widened(found.logprob_token_ids, 0)
    shown = widened(named.logprobs, -torch.inf), widened(found.logprobs, -torch.inf)
    return LogprobsTensors(
        torch.where(of_named, *ids), torch.where(of_named, *shown), found.selected_token_ranks
    )
