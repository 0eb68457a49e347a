"""What each architecture is good for: tried as target and as drafter, or why it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, remote_speculative
from draftwire.engines.hf.cache import SequenceCache
from draftwire.engines.hf.sequence import CachedSequence, continues
from draftwire.errors import ModelError
from testing.harness.architectures import NOT_TINY, V, tiny_model
from testing.harness.hostile import DEPTH, LENGTH, POLICY, WRONG, hostile_drafter
from testing.harness.tiny_models import tiny_tokenizer

PROMPT: Final = (3, 7, 2, 9, 4, 4, 8, 5, 6, 2, 3, 9)
# Largest distance of a logit, by the largest one: scans of a state space in another order are the
# farthest apart, 3e-6.
ROUNDING: Final = 1e-4

YES: Final = "yes"
FEW: Final = "yes, few drafts are accepted"
ONE_BY_ONE: Final = "yes, one token a pass"


@dataclass(frozen=True, slots=True)
class Finding:
    """One class: what it does as target and as drafter, and a remark."""

    name: str
    target: str
    drafter: str
    remark: str = ""

    def row(self) -> str:
        """Return the row of the table in the guide."""
        return f"| `{self.name}` | {self.target} | {self.drafter} | {self.remark} |"


def walk(model_type: str) -> Finding:
    """Try an architecture out. Raises AssertionError where what is served is not right."""
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    if model_type in NOT_TINY:
        return Finding(name, "not tried", "not tried", NOT_TINY[model_type])
    model = tiny_model(model_type)
    target, why = _as_target(model)
    drafter, why_not = _as_drafter(model, conforming=not why)
    remark = why or why_not
    if not remark and SequenceCache(model).keeps_state:
        remark = "keeps states"
    return Finding(name, target, drafter, remark)


def _as_target(model: Any) -> tuple[str, str]:
    """Greedy text and rows beside those of generate, with drafts rejected at every place."""
    try:
        engine = HfTargetEngine(model, tiny_tokenizer(V), identity=b"t" * 32)
    except ModelError as error:
        return "no", cause(error)
    ids = torch.tensor([PROMPT])
    call: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": LENGTH,
        "return_dict_in_generate": True,
    }
    alone = model.generate(ids, output_logits=True, **call)
    text = alone.sequences[0, len(PROMPT) :].tolist()
    reports: list[Any] = []
    with hostile_drafter(engine, PROMPT, text) as drafter:
        drafted = model.generate(
            ids,
            custom_generate=remote_speculative,
            drafter=drafter,
            policy=POLICY,
            seed=1,
            reports=reports,
            **call,
        )
    assert drafted.sequences[0, len(PROMPT) :].tolist() == text
    assert 0 < reports[0].accepted < reports[0].verified
    _compare_rows(CachedSequence(model), text, torch.cat(alone.logits).float())
    one_by_one = SequenceCache(model).keeps_state and not continues(model)
    return ONE_BY_ONE if one_by_one else YES, ""


def _compare_rows(sequence: CachedSequence, text: list[int], expected: torch.Tensor) -> None:
    """Hold each row of ``generate`` beside one with hostile tokens behind it, rolled back after."""
    scale = float(expected.abs().max().clamp(min=1))
    for at in range(len(text) - DEPTH):
        if at not in WRONG:
            continue
        ids = [*PROMPT, *text[:at]]
        tail = [(token + 1 + at) % V for token in text[at : at + DEPTH]]
        sequence.truncate_to_prefix_of(ids)
        rows = sequence.forward([*ids[sequence.length :], *tail], DEPTH + 1)
        assert float((rows[0] - expected[at]).abs().max()) < ROUNDING * scale


def _as_drafter(model: Any, *, conforming: bool) -> tuple[str, str]:
    """Rows of two contexts that are fed and rolled back, beside those of one pass."""
    try:
        engine = HfDraftEngine(model, tiny_tokenizer(V), identity=b"d" * 32)
    except ModelError as error:
        return "no", cause(error)
    text = [*PROMPT, 11, 5, 13, 2, 8, 6]
    one, other = engine.open(), engine.open()
    engine.forward([(one, text[:10]), (other, text[:12])])
    engine.forward([(one, [1]), (other, [7])])
    engine.forward([(one, [9])])
    engine.truncate(one, 10)
    engine.truncate(other, 11)
    rows = engine.forward([(one, text[10:15]), (other, text[11:])])
    engine.truncate(one, 12)
    rows = torch.cat([rows, engine.forward([(one, text[12:14])])])
    if not conforming:
        return FEW, ""
    for row, end in zip(rows, (15, len(text), 14), strict=True):
        expected = CachedSequence(model).forward(text[:end])[0]
        scale = float(expected.abs().max().clamp(min=1))
        assert float((row - expected).abs().max()) < ROUNDING * scale
    return ("yes, in batches" if engine.batches else YES), ""


def cause(error: ModelError) -> str:
    """Return why a class is refused, without the figures."""
    text = str(error).split("; p of a position")[0]
    text = text.split("exactly: ")[-1].split("generate: ")[-1]
    return text.split("ForCausalLM ")[-1].split("LMHeadModel ")[-1].split(" (")[0].strip()
