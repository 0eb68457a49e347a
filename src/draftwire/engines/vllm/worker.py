"""The worker that ``--worker-cls`` names: vLLM's own for this platform, with our parts put in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

import draftwire.engines.vllm.repairs as repairs
from draftwire.engines.vllm.compatibility import require_runner, require_vllm
from draftwire.engines.vllm.config import Options
from draftwire.engines.vllm.proposer import Proposer
from draftwire.engines.vllm.sampler import Sampler

if TYPE_CHECKING or current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class WorkerMixin:
    """What draftwire adds to a worker; before a worker class of vLLM's in the order of bases."""

    model_runner: Any
    vllm_config: Any

    def init_device(self) -> None:
        """Let vLLM make its runner, then put the sampler and the hooks in. ConfigurationError."""
        require_vllm()
        Options.of(self.vllm_config)
        super().init_device()  # type: ignore[misc]
        if current_platform.is_cpu():
            repairs.apply()
        runner = self.model_runner
        require_runner(runner)
        proposer = runner.drafter
        if not isinstance(proposer, Proposer):  # another class under the same name
            raise TypeError(f"the runner's drafter is {type(proposer)}, not draftwire's")
        runner.__class__ = with_hooks(type(runner))
        proposer.attach(runner, decides=get_tp_group().rank_in_group == 0)
        runner.rejection_sampler = Sampler(runner, proposer, share)

    def shutdown(self) -> None:
        """End the drafter's sessions, then what vLLM ends."""
        proposer = getattr(getattr(self, "model_runner", None), "drafter", None)
        if isinstance(proposer, Proposer):
            proposer.close()
        super().shutdown()  # type: ignore[misc]


class Worker(WorkerMixin, PlatformWorker):
    """The worker of this machine's platform."""


class RunnerMixin:
    """The hooks in vLLM's V1 model runner."""

    drafter: Proposer
    input_batch: Any

    def _update_states(self, scheduler_output: Any) -> Any:
        """Begin a step: end the sessions of requests that have finished, however they did.

        Words are ours, so no request needs a generator; and vLLM winds one back after each chunk of
        a prompt, which a generator of the CPU cannot do.
        """
        updated = super()._update_states(scheduler_output)  # type: ignore[misc]
        self.input_batch.generators.clear()
        speculation = self.drafter.speculation
        if speculation is not None:
            if speculation.breaker is not None:
                speculation.breaker.began(comparable=reads_no_prompt(scheduler_output))
            for name in scheduler_output.finished_req_ids:
                speculation.finish(name)
                if speculation.states is not None:
                    speculation.states.finish(name)
        return updated

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...] | None:
        """The layers whose states the drafter reads, in the place of a drafter's of vLLM's own."""
        speculation = self.drafter.speculation
        if speculation is None or speculation.states is None:
            return super()._get_eagle3_aux_layers_from_config()  # type: ignore[misc,no-any-return]
        return speculation.states.vllm_layers

    def propose_draft_token_ids(self, *arguments: Any, **named: Any) -> Any:
        """Keep the states of the step, for the drafter that is asked then."""
        given = _PROPOSE.bind(self, *arguments, **named).arguments
        speculation, states = self.drafter.speculation, given["aux_hidden_states"]
        if speculation is not None and speculation.states is not None and states is not None:
            counts = given["scheduler_output"].num_scheduled_tokens
            speculation.states.take(self.input_batch, counts, states)
        return super().propose_draft_token_ids(*arguments, **named)  # type: ignore[misc]

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        """Every row has a limit of its own; near the context's end vLLM drafts zeros for all."""
        return common_attn_metadata is not None

    def _get_spec_decode_draft_probs(self, spec_decode_metadata: Any) -> None:
        """Q is in the speculation, as counts; there is no dense array of it."""


_PROPOSE: Final = inspect.signature(GPUModelRunner.propose_draft_token_ids)


def reads_no_prompt(scheduler_output: Any) -> bool:
    """Whether every row of a step is one token and its drafts."""
    drafts = scheduler_output.scheduled_spec_decode_tokens.values()
    rows = len(scheduler_output.num_scheduled_tokens)
    return bool(scheduler_output.total_num_scheduled_tokens == rows + sum(map(len, drafts)))


def with_hooks(runner_class: type) -> type:
    """Return the class with our hooks before it."""
    if issubclass(runner_class, RunnerMixin):
        return runner_class
    return type(f"Draftwire{runner_class.__name__}", (RunnerMixin, runner_class), {})


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Return the deciding rank's tensor on every rank of the tensor-parallel group.

    One rank asks the drafter, draws and decides; the others take its tokens, so that no clock and
    no rounding of their own can part them.
    """
    group = get_tp_group()
    if group.world_size > 1:
        torch.distributed.broadcast(tensor, src=group.ranks[0], group=group.cpu_group)
    return tensor
