"""The vLLM releases this package works with, and the private names of theirs that it stands on."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, Final

from draftwire.errors import ConfigurationError

SUPPORTED: Final = ("0.32.0", "0.33")  # from the first, up to and without the second

_RUNNER: Final = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_SIGNATURES: Final = {
    f"{_RUNNER}._update_states": ("self", "scheduler_output"),
    f"{_RUNNER}._input_fits_in_drafter": ("self", "common_attn_metadata"),
    f"{_RUNNER}._get_spec_decode_draft_probs": ("self", "spec_decode_metadata"),
    f"{_RUNNER}._get_eagle3_aux_layers_from_config": ("self",),
    f"{_RUNNER}._setup_eagle3_aux_hidden_state_outputs": ("self",),
    f"{_RUNNER}._sample": ("self", "logits", "spec_decode_metadata"),
    f"{_RUNNER}.propose_draft_token_ids": (
        "self",
        "scheduler_output",
        "sampled_token_ids",
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "spec_decode_metadata",
        "common_attn_metadata",
        "slot_mappings",
    ),
    "vllm.v1.worker.gpu_worker:Worker.init_device": ("self",),
    "vllm.v1.worker.cpu_worker:CPUWorker.init_device": ("self",),
    "vllm.v1.sample.rejection_sampler:RejectionSampler.forward": (
        "self",
        "metadata",
        "draft_probs",
        "logits",
        "sampling_metadata",
    ),
    "vllm.v1.sample.rejection_sampler:RejectionSampler.apply_logits_processors": (
        "self",
        "logits",
        "sampling_metadata",
        "metadata",
    ),
    "vllm.v1.sample.rejection_sampler:apply_sampling_constraints": (
        "logits",
        "cu_num_draft_tokens",
        "sampling_metadata",
    ),
    "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens": (
        "x",
        "cu_num_tokens",
        "num_tokens",
        "replace_from",
        "replace_to",
    ),
    "vllm.v1.sample.sampler:Sampler.gather_logprobs": ("logprobs", "num_logprobs", "token_ids"),
    "vllm.v1.sample.sampler:Sampler.gather_specific_token_logprobs": (
        "self",
        "logprobs",
        "logprob_token_ids",
        "sampled",
    ),
    "vllm.v1.sample.sampler:Sampler.compute_logprobs": ("logits",),
    "vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder.apply_to_logits": (
        "self",
        "logits",
        "predict_bonus_token",
        "spec_token_ids",
    ),
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self",),
    "vllm.sampling_params:SamplingParams._validate_spec_decode": ("self", "speculative_config"),
}
_FIELDS: Final = {
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata": (
        "draft_token_ids",
        "num_draft_tokens",
        "cu_num_draft_tokens",
        "cu_num_sampled_tokens",
        "target_logits_indices",
        "bonus_logits_indices",
    ),
    "vllm.v1.sample.metadata:SamplingMetadata": (
        "temperature",
        "top_k",
        "top_p",
        "all_greedy",
        "max_num_logprobs",
        "logprob_token_ids",
        "spec_token_ids",
        "output_token_ids",
        "thinking_budget_state_holder",
    ),
    "vllm.sampling_params:SamplingParams": ("min_p", "logit_bias", "extra_args"),
}
_RUNNER_ATTRIBUTES: Final = (
    "input_batch",
    "requests",
    "drafter",
    "rejection_sampler",
    "sampler",
    "discard_request_mask",
    "max_model_len",
    "use_aux_hidden_state_outputs",
)


def require_vllm() -> None:
    """Refuse another vLLM than the supported ones, or one whose private names are not as known.

    Raises ConfigurationError, in one sentence.
    """
    import vllm

    if not is_supported(vllm.__version__):
        raise ConfigurationError(
            f"draftwire works with vLLM {SUPPORTED[0]} up to, but not including, {SUPPORTED[1]},"
            f" and this is {vllm.__version__}: install a release of that range, or a draftwire"
            " made for this one"
        )
    wrong = sorted(_wrong_names())
    if wrong:
        raise ConfigurationError(
            f"this vLLM {vllm.__version__} is not the one that draftwire knows ({', '.join(wrong)}"
            " differ): install an unchanged release"
        )


def require_runner(runner: Any) -> None:
    """Refuse a model runner without what the mixin uses (the V2 runner has no proposer registry).

    Raises ConfigurationError.
    """
    missing = [name for name in _RUNNER_ATTRIBUTES if not hasattr(runner, name)]
    if missing:
        raise ConfigurationError(
            f"draftwire needs vLLM's V1 model runner, and {type(runner).__name__} has no"
            f" {', '.join(missing)}: unset VLLM_USE_V2_MODEL_RUNNER"
        )


def is_supported(version: str) -> bool:
    """Whether a version lies in the range; local parts (+cpu) do not count."""
    return _numbers(SUPPORTED[0]) <= _numbers(version) < _numbers(SUPPORTED[1])


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _wrong_names() -> list[str]:
    wrong = []
    for path, parameters in _SIGNATURES.items():
        found = _resolve(path)
        names = () if found is None else tuple(inspect.signature(found).parameters)
        if names[: len(parameters)] != parameters:
            wrong.append(path.partition(":")[2])
    for path, fields in _FIELDS.items():
        found = _resolve(path)
        known = getattr(found, "__dataclass_fields__", getattr(found, "__struct_fields__", ()))
        wrong += [f"{path.partition(':')[2]}.{name}" for name in fields if name not in known]
    return wrong


def _resolve(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found
