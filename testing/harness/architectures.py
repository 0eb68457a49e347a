"""Tiny models of every architecture that transformers has for causal language modelling."""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

torch.set_num_threads(1)

V: Final = 48
LARGEST: Final = 8_000_000  # parameters

# Names under which configurations say the same thing; only those that a class has are set.
_SIZES: Final[dict[str, Any]] = {
    "vocab_size": V,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "emb_dim": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "expert_intermediate_size": 16,
    "ffn_dim": 32,
    "d_ff": 32,
    "dff": 32,
    "n_inner": 32,
    "dim_ff": 32,
    "decoder_ffn_dim": 32,
    "encoder_ffn_dim": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_attention_heads": 2,
    "n_head": 2,
    "n_heads": 2,
    "num_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_attention_heads": 2,
    "num_decoder_attention_heads": 2,
    "num_encoder_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "n_positions": 128,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "layer_types": None,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": None,
}


def model_types() -> list[str]:
    """Return one model type for each class of the mapping: of a text model where there are two."""
    found: dict[str, str] = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if name not in found or model_type.endswith("_text"):
            found[name] = model_type
    return list(found.values())


def tiny_config(model_type: str) -> Any:
    """Return a configuration of a few thousand parameters."""
    plain = AutoConfig.for_model(model_type)
    known = {**plain.to_dict(), **dict.fromkeys(getattr(plain, "attribute_map", {}))}
    values = {name: value for name, value in _SIZES.items() if name in known}
    if known.get("layer_types") is None:
        values.pop("layer_types", None)
    values |= OVERRIDES.get(model_type, {})
    return AutoConfig.for_model(model_type, **values)


# Of a mixed model: one layer of each kind.
_LINEAR: Final = {"layer_types": ["linear_attention", "full_attention"]}
_MAMBA2: Final = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
    "mamba_n_groups": 1,
}
_DELTA: Final = {
    **_LINEAR,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MLA: Final = {"head_dim": 8, "num_key_value_heads": 2}

_SPECIAL: Final[dict[str, dict[str, Any]]] = {
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": V,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [32] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": V,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 16,
    },
    "deepseek_v2": _MLA,
    "deepseek_v3": {**_MLA, "n_group": 1, "topk_group": 1},
    "axk1": {**_MLA, "n_group": 1, "topk_group": 1},
    "axk2": {**_MLA, "n_group": 1, "topk_group": 1},
    "bailing_hybrid": {**_LINEAR, **_MLA, "n_group": 1, "topk_group": 1},
    "kimi_linear": {
        **_LINEAR,
        **_MLA,
        "linear_head_dim": 8,
        "linear_num_heads": 2,
        "q_lora_rank": None,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 4},
    "nemotron_h": {
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 4,
        "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
        "moe_shared_expert_intermediate_size": 16,
    },
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 64},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA2, **_LINEAR},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "mamba_ngroups": 1,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "chunk_size": 4,
        "num_key_value_heads": 2,
    },
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 8,
        "lru_width": 32,
    },
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "deepseek_v32": {
        **_MLA,
        "n_group": 1,
        "topk_group": 1,
        "index_topk": 6,
        "index_n_heads": 16,
        "index_head_dim": 16,
    },
    "glm_moe_dsa": {**_MLA, "index_topk": 6, "index_n_heads": 16, "index_head_dim": 16},
    "glm4_moe_lite": {**_MLA, "n_group": 1, "topk_group": 1},
    "minicpm3": _MLA,
    "youtu": _MLA,
    "longcat_flash": {
        **_MLA,
        "ffn_hidden_size": 32,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "diffllama": {"num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX", "is_decoder": True},
    "roc_bert": {
        "is_decoder": True,
        "pronunciation_vocab_size": V,
        "shape_vocab_size": V,
        "pronunciation_embed_dim": 16,
        "shape_embed_dim": 16,
    },
    "dory": {"head_dim": 16, "num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1},
    "qwen4_exp_text": {
        **_DELTA,
        "layer_types": ["linear_attention", "indexed_attention"],
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 64,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attention_head_size": 16},
    "dots3_note_text": {"num_key_value_heads": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_head_dim": 16,
        "mamba_d_state": 4,
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
    },
}
_DECODERS: Final[dict[str, dict[str, Any]]] = {
    name: {"is_decoder": True}  # as one has them that generate
    for name in (
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
    )
}
OVERRIDES: Final = {**_SPECIAL, **_DECODERS}


# Why a class is not tried.
NOT_TINY: Final[dict[str, str]] = dict.fromkeys(
    (
        "emu3",
        "fuyu",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "git",
        "got_ocr2",
        "mllama",
        "moss_transcribe_diarize",
        "phi4_multimodal",
    ),
    "has towers that are not text",
) | {
    "blt": "reads patches of bytes, by a model of its own",
    "gemma4_assistant": "drafts from the target's own keys and values",
    "gemma4_unified_assistant": "drafts from the target's own keys and values",
    "inkling2_text": "no configuration made it tiny",
    "inkling2_loop_text": "no configuration made it tiny",
    "musicgen": "a part of a music model",
    "musicgen_melody": "a part of a music model",
}


def tiny_model(model_type: str) -> Any:
    """Return a seeded random model of an architecture, in binary32."""
    config = tiny_config(model_type)
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters: no configuration made it tiny")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model
