"""What draftwire is told through vLLM's own configuration, checked before anything is loaded.

The drafter is named in ``--speculative-config``, the worker in ``--worker-cls``, and everything
else stands under the key ``draftwire`` of ``--additional-config``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from draftwire.errors import ConfigurationError
from draftwire.kernels.registry import CHOICES
from draftwire.session.slot_buffers import SlotPlan
from draftwire.transport.security import SECURITY, Security, contradiction, security_of
from draftwire.transport.tcp import Address
from draftwire.transport.tls import Tls, TlsFiles, parse_fingerprint
from draftwire.wire.identity import parse_identity
from draftwire.wire.registry import MAX_DEPTH, MAX_VOCABULARY, Layout

PACKAGE: Final = "draftwire.engines.vllm"
PROPOSER: Final = f"{PACKAGE}.Proposer"
WORKER: Final = f"{PACKAGE}.Worker"
KEY: Final = "draftwire"
DEFAULT_ADDRESS: Final = "127.0.0.1:7711"
_LOGITS_PROCESSORS: Final = "vllm.logits_processors"  # their group of entry points
_SPECULATIVE: Final = (
    f'--speculative-config \'{{"method": "custom_class", "model": "{PROPOSER}",'
    ' "num_speculative_tokens": 5}\''
)


@dataclass(frozen=True, slots=True)
class Options:
    """The checked configuration of one engine.

    depth: drafts a round, vLLM's ``num_speculative_tokens``. deadline: seconds that one step of the
    engine waits for the drafter at most, connecting included. support: K of the sparse layout, 0
    for dense. audit: recompute every draw. draft_identity: the one checkpoint taken as drafter, all
    zero = any. security: the key or the certificates that the drafter was started with.
    breaker: pause drafting that costs more than it brings, of requests without a seed.
    derived_deadline: a round may take what earlier ones lead to expect, ``deadline`` at most.
    slots: the memory for replies of all requests; None = as HELLO agrees. kernels: what judges the
    rows of p; ``auto`` = by where they lie.
    """

    depth: int
    address: Address
    deadline: float = 0.25
    layout: Layout = Layout.SPARSE
    support: int = 32
    audit: bool = True
    draft_identity: bytes = bytes(32)
    security: Security | None = None
    breaker: bool = True
    derived_deadline: bool = False
    slots: SlotPlan | None = None
    kernels: str = "auto"

    @classmethod
    def of(cls, vllm_config: Any) -> Options:
        """Read a VllmConfig that names draftwire. Raises ConfigurationError with what to do."""
        speculative = vllm_config.speculative_config
        if not names_proposer(vllm_config):
            raise ConfigurationError(f"--worker-cls {WORKER} needs a drafter: add {_SPECULATIVE}")
        if not names_worker(vllm_config):
            raise ConfigurationError(
                f"the proposer {PROPOSER} needs draftwire's worker beside it, which verifies with"
                f" the whole q: add --worker-cls {WORKER}"
            )
        _require_features(vllm_config)
        given = (vllm_config.additional_config or {}).get(KEY, {})
        return cls.parse(given, depth=speculative.num_speculative_tokens)

    @classmethod
    def parse(cls, given: Any, *, depth: int) -> Options:
        """Read the mapping under the key ``draftwire``. Raises ConfigurationError."""
        if not isinstance(given, Mapping):
            raise ConfigurationError(f'"{KEY}" in --additional-config must be a JSON object')
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise ConfigurationError(
                f'"{KEY}" in --additional-config has no {", ".join(map(repr, unknown))}: it takes'
                f" {', '.join(OPTIONS)}"
            )
        if not 1 <= depth <= MAX_DEPTH:
            raise ConfigurationError(
                f"num_speculative_tokens must be between 1 and {MAX_DEPTH}, not {depth}"
            )
        values: dict[str, Any] = {"address": Address.parse(DEFAULT_ADDRESS)}
        for name, value in given.items():
            if name not in SECURITY:
                values.update(_READERS[name](value))
        if "slots" in values:
            values["slots"] = replace(values["slots"], depth=depth)
        return cls(depth=depth, security=_security(given), **values)


def names_proposer(vllm_config: Any) -> bool:
    """Whether the speculative configuration names our proposer."""
    return is_proposer(getattr(vllm_config, "speculative_config", None))


def is_proposer(speculative: Any) -> bool:
    """Whether a SpeculativeConfig, or None, is one of ours."""
    return (
        speculative is not None
        and speculative.method == "custom_class"
        and str(speculative.model) in (PROPOSER, f"{PACKAGE}.proposer.Proposer")
    )


def names_worker(vllm_config: Any) -> bool:
    """Whether the worker class is ours."""
    return vllm_config.parallel_config.worker_cls in (WORKER, f"{PACKAGE}.worker.Worker")


def _require_features(vllm_config: Any) -> None:
    """Refuse parts of vLLM that would silently not do what they say beside this proposer."""
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    refused = {
        "drafts come too late for asynchronous scheduling: leave --async-scheduling away":
            bool(vllm_config.scheduler_config.async_scheduling),
        "pipeline parallelism is not supported beside it: set --pipeline-parallel-size 1":
            parallel.pipeline_parallel_size > 1,
        "the drafter checks the tokenizer's identity: leave --skip-tokenizer-init away":
            bool(vllm_config.model_config.skip_tokenizer_init),
        'draftwire verifies with a sampler of its own: leave "rejection_sample_method" away':
            speculative.rejection_sample_method != "standard",
        'the depth is fixed before the draw: leave "num_speculative_tokens_per_batch_size" away':
            speculative.num_speculative_tokens_per_batch_size is not None,
    }  # fmt: skip
    plugins = sorted(each.name for each in entry_points(group=_LOGITS_PROCESSORS))
    if plugins:  # vLLM leaves them out without a word
        raise ConfigurationError(
            f"vLLM runs no logits processors beside speculation, and {', '.join(plugins)} are"
            " installed: uninstall them, or serve without a drafter"
        )
    for sentence, present in refused.items():
        if present:
            raise ConfigurationError(sentence)


def _address(value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        raise ConfigurationError(f"address must be a string HOST:PORT, not {value!r}")
    address = Address.parse(value)
    if not address.port:
        raise ConfigurationError("address must name the drafter's port, as draftwire serve says it")
    return {"address": address}


def _deadline(value: Any) -> dict[str, Any]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise ConfigurationError(f"deadline_ms must be a finite number above 0, not {value!r}")
    return {"deadline": value / 1000}


def _layout(value: Any) -> dict[str, Any]:
    if value == "dense":
        return {"layout": Layout.DENSE, "support": 0}
    name, _, width = str(value).partition(":")
    if name == "sparse" and width.isascii() and width.isdigit():
        support = int(width)
        if 1 <= support <= MAX_VOCABULARY:
            return {"layout": Layout.SPARSE, "support": support}
    raise ConfigurationError(f'layout must be "dense" or "sparse:K", K at least 1, not {value!r}')


def _switch(name: str) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} must be true or false, not {value!r}")
        return {name: value}

    return read


def _slots(value: Any) -> dict[str, Any]:
    given = value if isinstance(value, Mapping) else {}
    whole = all(type(number) is int and number >= 1 for number in given.values())
    if not given or not whole or not set(given) <= {"requests", "in_flight"}:
        raise ConfigurationError(
            'slots must be an object with "requests", "in_flight" or both, each 1 or more,'
            f" not {value!r}"
        )
    return {"slots": SlotPlan(**given)}


def _kernels(value: Any) -> dict[str, Any]:
    if value not in CHOICES:
        raise ConfigurationError(f"kernels must be one of {', '.join(CHOICES)}, not {value!r}")
    return {"kernels": value}


def _draft_identity(value: Any) -> dict[str, Any]:
    try:
        return {"draft_identity": parse_identity(value)}
    except ConfigurationError as error:
        raise ConfigurationError(f"draft_identity: {error}") from error


def _security(given: Mapping[str, Any]) -> Security | None:
    """Read the options of SECURITY, files included, so that a wrong one is refused at start."""
    options: dict[str, Any] = {}
    for name in SECURITY:
        value = given.get(name)
        if name == "tls_fingerprint":
            several = [value] if isinstance(value, str) else value or []
            if not isinstance(several, list) or not all(isinstance(one, str) for one in several):
                raise ConfigurationError(f"{name} must be a SHA-256 or a list of them")
            options[name] = tuple(parse_fingerprint(one) for one in several)
        elif value is not None:
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name} must be the path of a file, not {value!r}")
            options[name] = Path(value)
    wrong = contradiction(options, lambda name: f'"{name}"')
    if wrong is not None:
        raise ConfigurationError(wrong)
    security = security_of(options)
    if isinstance(security, TlsFiles):
        Tls(security, server=False)
    return security


_READERS: Final = {
    "address": _address,
    "deadline_ms": _deadline,
    "layout": _layout,
    "audit": _switch("audit"),
    "draft_identity": _draft_identity,
    "breaker": _switch("breaker"),
    "derived_deadline": _switch("derived_deadline"),
    "slots": _slots,
    "kernels": _kernels,
}
OPTIONS: Final = (*_READERS, *SECURITY)
"""What may stand under the key ``draftwire``."""
