"""What HELLO says of a target that vLLM runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from draftwire.engines.hf.identity import real_vocabulary, tokenizer_hash
from draftwire.wire.identity import IdMap, labelled_sha256


@dataclass(frozen=True, slots=True)
class Target:
    """The vocabulary and the names of the target; ``vocab_size`` counts no padding.

    identity: SHA-256 of what identifies the model to vLLM (name, revision, configuration). The
    weights are not read: a server of a large model must not read them twice to start.
    """

    vocab_size: int
    max_context: int
    identity: bytes
    tokenizer_hash: bytes
    id_map_hash: bytes


def describe(vllm_config: Any) -> Target:
    """Describe the target of a VllmConfig, with its own tokenizer. Raises ModelError."""
    from vllm.tokenizers import cached_tokenizer_from_config

    model = vllm_config.model_config
    tokenizer = cached_tokenizer_from_config(model)
    vocabulary = real_vocabulary(tokenizer, model.get_vocab_size())
    names = [model.model, model.revision, str(model.dtype), model.quantization]
    text = json.dumps([names, model.hf_config.to_dict()], sort_keys=True, default=str)
    return Target(
        vocab_size=vocabulary,
        max_context=model.max_model_len,
        identity=labelled_sha256("draftwire vllm target v1", (text.encode(),)),
        tokenizer_hash=tokenizer_hash(tokenizer),
        id_map_hash=IdMap.native(vocabulary).hash(),
    )
