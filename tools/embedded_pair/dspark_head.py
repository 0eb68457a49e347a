"""Train a DSpark head for the embedded target on what the target writes; it reads its states.

One pass drafts a whole block. Blocks stand at random places of the target's own text, each sees the
states before its anchor and its own rows. The loss is that of DSpark (arXiv 2607.05147): the L1
distance of q and p and a little cross-entropy, the first drafts counting most, since the later ones
are verified only where those are accepted; and how likely each is accepted, for the confidence.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from draftwire.engines.dspark.backbone import BlockDrafter
from draftwire.engines.dspark.formats import described

from . import own_text
from .corpus import load_corpus
from .optimiser import Budget, Optimiser
from .own_text import OwnText
from .vocabulary import encode_documents

BLOCK, LAYERS, RANK = 6, 2, 64
TARGET_LAYERS = (1, 11, 21)
MASK_TOKEN = 2  # the pad, which no text holds
ROWS, ANCHORS = 8, 24  # of a step; anchors of each row
VALIDATION_ROWS = 64
TEMPERATURES = (0.65, 1.0)  # of the loss, by turns of the rows
VARIATION_SHARE = 0.9
FADING = 4.0  # drafts after which a draft counts 1 / e
MATRIX_RATE, VECTOR_RATE = 0.01, 0.003
SAMPLING_SHARE = 0.35
CHECK_SECONDS = 120.0
STATE_ROWS = 64  # of a pass of the target


def config_of(target: LlamaForCausalLM) -> dict[str, Any]:
    """The config.json of the head, in DeepSpec's form; its layers are as wide as the target's."""
    theirs = target.config
    return {
        "architectures": ["Qwen3DSparkModel"],
        "attention_bias": False,
        "block_size": BLOCK,
        "confidence_head_with_markov": True,
        "dtype": "float16",
        "enable_confidence_head": True,
        "head_dim": theirs.head_dim,
        "hidden_act": "silu",
        "hidden_size": theirs.hidden_size,
        "intermediate_size": theirs.intermediate_size,
        "layer_types": ["full_attention"] * LAYERS,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": MASK_TOKEN,
        "max_position_embeddings": theirs.max_position_embeddings,
        "model_type": "qwen3",
        "num_anchors": ANCHORS,
        "num_attention_heads": theirs.num_attention_heads,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": theirs.num_key_value_heads,
        "num_target_layers": theirs.num_hidden_layers,
        "rms_norm_eps": theirs.rms_norm_eps,
        "rope_theta": theirs.rope_parameters["rope_theta"],
        "target_layer_ids": list(TARGET_LAYERS),
        "tie_word_embeddings": True,
        "vocab_size": theirs.vocab_size,
    }


def new_head(target: LlamaForCausalLM) -> BlockDrafter:
    """A head without experience: embeddings and last norm are the target's, embeddings frozen."""
    description = described(config_of(target))
    assert description is not None
    head = BlockDrafter(description.shape)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.02)
        head.norm.weight.copy_(target.model.norm.weight)
        assert head.markov_head is not None
        head.markov_head.markov_w2.weight.zero_()  # no bias at first
    for module in (head.embed_tokens, head.lm_head):
        module.weight = torch.nn.Parameter(target.model.embed_tokens.weight.detach().clone(), False)
    return head


@torch.inference_mode()
def states_of(target: LlamaForCausalLM, tokens: np.ndarray, path: Path) -> np.ndarray:
    """The states of TARGET_LAYERS of every token, layer beside layer, binary16, kept in a file."""
    width = len(TARGET_LAYERS) * target.config.hidden_size
    found = np.memmap(path, np.float16, "w+", shape=(*tokens.shape, width))
    for begin in range(0, len(tokens), STATE_ROWS):
        ids = torch.from_numpy(tokens[begin : begin + STATE_ROWS].astype(np.int64))
        layers = target.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        chosen = [layers.hidden_states[layer + 1] for layer in TARGET_LAYERS]
        found[begin : begin + STATE_ROWS] = torch.cat(chosen, -1).numpy().astype(np.float16)
    return found


def mask_of(anchors: Tensor, length: int) -> Tensor:
    """Which states and rows each row attends to: bool (N, 1, blocks x BLOCK, length + as many).

    anchors: int64 (N, blocks). A row sees the states before its own anchor and its own block.
    """
    rows, blocks = anchors.shape
    before = torch.arange(length)[None, None] < anchors[..., None]
    own = torch.eye(blocks, dtype=torch.bool).expand(rows, blocks, blocks)
    own = own.repeat_interleave(BLOCK, 2)
    return torch.cat([before, own], 2).repeat_interleave(BLOCK, 1)[:, None]


def rows_behind(values: Tensor, anchors: Tensor) -> Tensor:
    """The values (N, length, ...) at each anchor and the BLOCK - 1 places behind it."""
    places = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
    return torch.stack([each[at] for each, at in zip(values, places, strict=True)])


def drafted(
    head: BlockDrafter, tokens: Tensor, states: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits (N, blocks x BLOCK, V), each behind the text's own tokens, and confidence logits."""
    length = tokens.shape[1]
    positions = torch.arange(length).expand(len(tokens), length)
    keys = head.state_keys(head.fuse(states), positions)
    first = torch.gather(tokens, 1, anchors)
    hidden = head.block(first, anchors, keys, mask_of(anchors, length))
    assert head.markov_head is not None and head.confidence_head is not None
    before = rows_behind(tokens, anchors)
    state = head.markov_head.first_state(hidden)
    bias, _ = head.markov_head(state, before, hidden)
    seen = head.markov_head.before(before)
    return head.lm_head(hidden) + bias, head.confidence_head(hidden.detach(), seen.detach())


def loss_of(
    head: BlockDrafter, tokens: Tensor, states: Tensor, logits: Tensor, anchors: Tensor
) -> Tensor:
    """Return the loss of a step; logits: of the target, of the token behind each."""
    divisors = torch.tensor(TEMPERATURES)[torch.arange(len(tokens)) % len(TEMPERATURES)]
    divisors = divisors[:, None, None]
    made, sure = drafted(head, tokens, states, anchors)
    p = (rows_behind(logits, anchors).float() / divisors).softmax(-1)
    q_log = (made / divisors).log_softmax(-1)
    distance = (p - q_log.exp()).abs().sum(-1)
    entropy = -(p * q_log).sum(-1)
    weights = torch.exp(-torch.arange(BLOCK) / FADING).repeat(anchors.shape[1])
    each = distance * VARIATION_SHARE + entropy * (1 - VARIATION_SHARE)
    accepted = 1 - distance.detach() / 2
    each = each + binary_cross_entropy_with_logits(sure, accepted, reduction="none")
    loss: Tensor = (each * weights).sum() / (weights.sum() * len(tokens))
    return loss


@torch.no_grad()
def tokens_of_a_pass(
    head: BlockDrafter, text: OwnText, states: np.ndarray, rows: np.ndarray, depth: int = 5
) -> dict[float, float]:
    """Expected tokens of a pass, along the target's own text: 1 + a_1 + a_1 a_2 + ..."""
    anchors = torch.arange(own_text.PROMPT, own_text.LENGTH - BLOCK, 4)
    sums, count = dict.fromkeys((0.6, 0.8, 1.0), 0.0), 0
    for chunk in np.array_split(rows, len(rows) // ROWS):
        tokens, given, logits = batch_of(text, states, chunk)
        at = anchors.expand(len(chunk), -1)
        made, _ = drafted(head, tokens, given, at)
        wanted = rows_behind(logits, at).float()
        count += at.numel()
        for temperature in sums:
            p, q = ((each / temperature).softmax(-1) for each in (wanted, made))
            accepted = torch.minimum(p, q).sum(-1).reshape(*at.shape, BLOCK)[..., :depth]
            sums[temperature] += (1 + accepted.cumprod(-1).sum(-1)).sum().item()
    return {at: total / count for at, total in sums.items()}


def batch_of(text: OwnText, states: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 (rows, LENGTH), states binary32 and logits binary16 of each."""
    tokens = torch.from_numpy(text.tokens[rows].astype(np.int64))
    given = torch.from_numpy(states[rows].astype(np.float32))
    return tokens, given, torch.from_numpy(text.logits[rows])


def train(
    head: BlockDrafter, text: OwnText, states: np.ndarray, seconds: float, seed: int, folder: Path
) -> dict[str, Any]:
    """Train for ``seconds`` and keep the best; returns steps and tokens of a pass."""
    rng = np.random.default_rng(seed)
    validation = np.arange(len(text) - VALIDATION_ROWS, len(text))
    training = len(text) - VALIDATION_ROWS
    optimiser = Optimiser(head, head.layers, MATRIX_RATE, VECTOR_RATE)
    budget, start = Budget(seconds, decay=0.7), time.monotonic()
    checked, steps, best = start, 0, {0.0: 0.0}
    order = np.empty(0, dtype=np.int64)
    while budget.used < 1.0:
        if len(order) < ROWS:
            order = rng.permutation(training)
        rows, order = order[:ROWS], order[ROWS:]
        places = rng.integers(1, own_text.LENGTH - BLOCK, (ROWS, ANCHORS))
        torch.autograd.backward(
            loss_of(head, *batch_of(text, states, rows), torch.from_numpy(places))
        )
        optimiser.step(budget.scale())
        steps += 1
        if time.monotonic() - checked > CHECK_SECONDS or budget.used >= 1.0:
            reached, checked = tokens_of_a_pass(head, text, states, validation), time.monotonic()
            told = {at: round(value, 3) for at, value in reached.items()}
            print(f"[head] {checked - start:5.0f}s {steps} steps {told}", flush=True)
            if sum(reached.values()) > sum(best.values()):
                best = reached
                keep(head, folder)
    return {
        "steps": steps,
        "seconds": round(time.monotonic() - start, 1),
        "tokens_of_a_pass": {str(at): round(value, 3) for at, value in best.items()},
    }


def keep(head: BlockDrafter, folder: Path) -> None:
    """Write the weights in DeepSpec's names, binary16; the head is the embedding, and left out."""
    kept = {
        name: values.detach().to(torch.float16).contiguous()
        for name, values in head.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.embedded_pair.dspark_head", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", type=Path, default=Path("src/draftwire/models/target"))
    parser.add_argument("--minutes", type=float, default=40.0, help="wall-clock time in all")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", type=Path, help="a folder of what the target wrote before")
    parser.add_argument("--kept", type=Path, default=Path(".out/own_text"), help="where to keep it")
    parser.add_argument("--output", type=Path, default=Path(".out/dspark"))
    return parser.parse_args()


def main() -> None:
    """Let the target write, read its states, train, and write the head's folder."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    seconds = 60 * options.minutes
    target = AutoModelForCausalLM.from_pretrained(options.target).eval()
    if options.text is None:
        tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
        stream = encode_documents(tokenizer, load_corpus().training)
        text = own_text.write(target, stream, seconds * SAMPLING_SHARE, options.seed, options.kept)
        seconds *= 1 - SAMPLING_SHARE
    else:
        text = own_text.read(options.text)
    began = time.monotonic()
    options.output.mkdir(parents=True, exist_ok=True)
    states = states_of(target, text.tokens, (options.text or options.kept) / "states.f16")
    seconds -= time.monotonic() - began
    made = json.dumps(config_of(target), indent=2) + "\n"
    (options.output / "config.json").write_text(made, encoding="utf-8")
    head = new_head(target)
    figures = train(head, text, states, seconds, options.seed, options.output)
    print(json.dumps(figures | {"own_tokens": int(text.tokens.size)}, indent=2))


if __name__ == "__main__":
    main()
