"""The proposer that vLLM's speculative configuration names: drafts for a batch, remotely."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.engines.vllm.compatibility import require_vllm
from draftwire.engines.vllm.config import KEY, WORKER, Options
from draftwire.engines.vllm.mirrored import mirrored
from draftwire.engines.vllm.policy import GREEDY_BELOW, depth_of, policy_of, settings_of
from draftwire.engines.vllm.speculation import ActiveRequest, ProposeRequest, SpeculationState
from draftwire.engines.vllm.states import RunnerStates, target_states
from draftwire.engines.vllm.target import Target, describe
from draftwire.errors import ConfigurationError, ProtocolError, TransportError
from draftwire.kernels.prepare import prepare_kernels
from draftwire.kernels.registry import kernels_for
from draftwire.transport.security import SECURITY
from draftwire.transport.tcp import Address
from draftwire.verifier.advice import security_advice
from draftwire.verifier.client import DraftClient
from draftwire.verifier.mirror import mirrored_bytes
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.states import TargetStates
from draftwire.wire.registry import LayoutSet

_LOG: Final = logging.getLogger("vllm.draftwire")  # below vLLM's own, so that it is shown
_START_SECONDS: Final = 5.0


class Proposer:
    """vLLM's custom proposer; ``Worker`` attaches it to the model runner whose requests it serves.

    vllm_config: names the drafter. One rank, the one that vLLM takes its results from, asks and
    decides; on the others ``speculation`` is None. Raises ConfigurationError.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Read the configuration; no connection is made yet."""
        require_vllm()
        self.options = Options.of(vllm_config)
        self.speculation: SpeculationState | None = None
        self._config = vllm_config
        self._runner: Any = None

    def attach(self, runner: Any, *, decides: bool) -> None:
        """Serve the requests of a model runner; ``decides``: on this rank."""
        self._runner = runner
        if decides:
            kernels = kernels_for(self.options.kernels, runner.device)
            width = self._config.model_config.get_vocab_size()
            layouts = LayoutSet(1 << self.options.layout) | LayoutSet.SPARSE  # greedy ones are
            support = min(self.options.support or 1, width)
            prepare_kernels(self.options.kernels, str(runner.device), layouts, support, width)
            has = target_states(self._config)
            client = connect(self.options, describe(self._config), self._most_requests(), has)
            states = client.agreed.states if client.agreed is not None else None
            runner.use_aux_hidden_state_outputs = states is not None
            self.speculation = SpeculationState(
                client,
                states=None if states is None else RunnerStates(states.layers, states.width),
                breaker=BatchBreaker() if self.options.breaker else None,
                kernels=kernels,
            )
            self.speculation.metrics.share(
                self._config.instance_id, self._config.parallel_config.data_parallel_rank
            )

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """There is no model to load; refuse a worker that did not attach this proposer."""
        if self._runner is None:
            raise ConfigurationError(f"the proposer needs its worker: add --worker-cls {WORKER}")

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return the drafts of each row of the batch; rows that sampled nothing get none."""
        names = list(self._runner.input_batch.req_ids)
        if self.speculation is None:
            return [[] for _ in names]
        wanted = [
            ProposeRequest(name, policy, self._seeded(name))
            for row, (name, tokens) in enumerate(zip(names, sampled_token_ids, strict=True))
            if (policy := self._policy(name, tokens, int(num_tokens_no_spec[row]))) is not None
        ]
        drafts = self.speculation.propose(wanted, self.options.deadline)
        return [list(drafts.get(name, ())) for name in names]

    def active(self, row: int) -> ActiveRequest:
        """Return the request in a row of the present batch, with its session, made if need be."""
        speculation, batch = self.speculation, self._runner.input_batch
        assert speculation is not None
        name, committed = batch.req_ids[row], int(batch.num_tokens_no_spec[row])
        active = speculation.requests.get(name)
        state = self._runner.requests[name]
        settings = settings_of(state.sampling_params)
        if active is not None and active.committed == committed:
            if active.settings != settings:
                speculation.use_settings(active, settings)
                active.processors = self._processors(state)
            return active
        text = not state.mm_features and state.prompt_embeds is None
        tokens = batch.token_ids_cpu[row, :committed].tolist()
        seed = state.sampling_params.seed
        active = speculation.begin(name, tokens, seed, drafted=text, settings=settings)
        active.processors = self._processors(state)
        return active

    def close(self) -> None:
        """End every session and the connection."""
        if self.speculation is not None:
            self.speculation.close()

    # inside

    def _policy(self, name: str, tokens: Sequence[int], committed: int) -> Any:
        """Return what to ask for a row, or None: nothing was sampled, or its text ends anyway.

        Everything here depends on what is committed alone, never on a draft (law 4).
        """
        speculation, state = self.speculation, self._runner.requests[name]
        assert speculation is not None
        active = speculation.requests.get(name)
        if not tokens or active is None or active.committed != committed:
            return None
        params, written = state.sampling_params, len(state.output_token_ids)
        left = self._runner.max_model_len - committed
        if params.max_tokens is not None:
            left = min(left, params.max_tokens - written)
        depth = min(self.options.depth, depth_of(params), left - 1)
        if depth < 1 or (written >= params.min_tokens and _stops(params).intersection(tokens)):
            return None
        client = speculation.client
        assert client is not None
        return policy_of(params, self.options, client.vocab_size, depth, active.processors)

    def _processors(self, state: Any) -> bytes:
        """Return what the drafter is told of a request's parameters (P34)."""
        assert self.speculation is not None
        client = self.speculation.client
        if client is None:
            return b""
        said = mirrored(state.sampling_params, state.num_prompt_tokens)
        return mirrored_bytes(said, client.vocab_size)

    def _seeded(self, name: str) -> bool:
        """Whether a request's text repeats from its seed, if its rounds are the same ones."""
        params = self._runner.requests[name].sampling_params
        return params.seed is not None and params.temperature >= GREEDY_BELOW

    def _most_requests(self) -> int:
        return int(self._config.scheduler_config.max_num_seqs)


def connect(
    options: Options, target: Target, most_requests: int, states: TargetStates | None = None
) -> DraftClient:
    """Return a client of the configured drafter, connected where it is there.

    states: what the target has of hidden states. A drafter that is away is found later; one that is
    there and does not fit is refused now. Raises ConfigurationError.
    """
    client = RemoteDrafter(
        options.address,
        target,
        deadline=None if options.derived_deadline else options.deadline,
        connect_timeout=_START_SECONDS,
        audit=options.audit,
        max_sessions=most_requests,
        max_depth=options.depth,
        max_support=max(options.support, 1),
        draft_identity=options.draft_identity,
        security=options.security,
        slots=options.slots,
        target_states=states,
    )
    try:
        agreed = client.connect()
    except TransportError as error:
        _LOG.warning("%s; going on with the target alone until it is back", error)
    except ProtocolError as error:
        client.close()
        raise ConfigurationError(_refusal(error, options.address)) from error
    else:
        if options.slots is not None and options.slots.requests < most_requests:
            _LOG.warning(
                "slots for %d requests and this engine decodes up to %d: the rest goes undrafted",
                options.slots.requests,
                most_requests,
            )
        if agreed.max_sessions < most_requests:
            _LOG.warning(
                "the drafter takes %d sessions and this engine decodes up to %d requests: the rest"
                " goes undrafted (draftwire serve --max-sessions %d)",
                agreed.max_sessions,
                most_requests,
                most_requests,
            )
    return client


def _refusal(error: ProtocolError, address: Address) -> str:
    advice = security_advice(error, address)
    if advice is None:
        return f"the drafter at {address} does not fit this target: {error}"
    names = ", ".join(SECURITY)
    return f'{advice} (here, as {names}, under "{KEY}" in --additional-config)'


def _stops(params: Any) -> set[int]:
    stops = set(params.stop_token_ids or ())
    if not params.ignore_eos and params.eos_token_id is not None:
        stops.add(params.eos_token_id)
    return stops
