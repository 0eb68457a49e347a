"""The entry point in ``vllm.general_plugins``; vLLM calls it in each of its processes.

Where an engine is configured, it has draftwire's part of the configuration checked before anything
is started, and shows its counters on /metrics. Requests of such an engine may have ``min_p`` and
``logit_bias``, which vLLM refuses beside any speculation and our sampler applies; the depth that a
request names is checked with them. It touches no engine that does not name draftwire.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any

import draftwire.engines.vllm.repairs as repairs

_MARK = "_draftwire_checked"


def register() -> None:
    """Prepare this process; may be called any number of times."""
    repairs.apply_before_start()
    _let_requests_in()
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is None:  # this process is not where a configuration is made
        return
    engine_args = arguments.EngineArgs
    original = engine_args.create_engine_config
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        check(config)
        return config

    setattr(create_engine_config, _MARK, True)
    engine_args.create_engine_config = create_engine_config


def check(vllm_config: Any) -> None:
    """Refuse a configuration that names draftwire and cannot work; leave every other alone.

    Raises ConfigurationError.
    """
    from draftwire.engines.vllm.config import Options, names_proposer, names_worker

    if not (names_proposer(vllm_config) or names_worker(vllm_config)):
        return
    from draftwire.engines.vllm.compatibility import require_vllm
    from draftwire.engines.vllm.metrics import register as register_metrics

    require_vllm()
    Options.of(vllm_config)
    register_metrics(vllm_config.instance_id)


def _let_requests_in() -> None:
    """Have requests checked by us where vLLM checks them against the speculation."""
    module = sys.modules.get("vllm.sampling_params")
    if module is None:
        return
    original = module.SamplingParams._validate_spec_decode
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def validate(self: Any, speculative_config: Any) -> None:
        from draftwire.engines.vllm.config import is_proposer

        if is_proposer(speculative_config):
            _refuse_depth(self)
            self = copy.copy(self)  # whatever else vLLM refuses stays refused
            self.min_p, self.logit_bias = 0.0, None
        original(self, speculative_config)

    setattr(validate, _MARK, True)
    module.SamplingParams._validate_spec_decode = validate


def _refuse_depth(params: Any) -> None:
    """Refuse a request whose own depth is none, as vLLM refuses requests: 400 over HTTP."""
    from vllm.exceptions import VLLMValidationError

    from draftwire.engines.vllm.policy import check_depth
    from draftwire.errors import ConfigurationError

    try:
        check_depth(params)
    except ConfigurationError as error:
        raise VLLMValidationError(str(error), parameter="extra_args") from error
