"""p of a tiny model after vLLM's processors, computed apart from vLLM; laws, and a test of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from draftwire.kernels.cpu.verify_loops import target_weights
from tests.vllm.models import END, WORDS

Text = tuple[int, ...]
Law = dict[Text, float]
LONGEST = 5  # tokens of a structured text, its end not counted


class Reference:
    """The model of a folder in transformers, in binary64, one prefix at a time."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
        self._rows: dict[Text, np.ndarray] = {}

    def logits(self, prefix: Text) -> np.ndarray:
        if prefix not in self._rows:
            with torch.inference_mode():
                output = self.model(input_ids=torch.tensor([prefix]), use_cache=False)
            self._rows[prefix] = output.logits[0, -1].numpy()
        return self._rows[prefix]

    def p(self, params: Any, prompt: Text, output: Text) -> np.ndarray:
        """What a request with these parameters samples from after ``output``: (V,), sums to 1."""
        logits = self.logits(prompt + output).copy()
        for token, bias in (params.logit_bias or {}).items():
            logits[token] += bias
        logits = penalised(logits, params, prompt, output)
        if params.allowed_token_ids:
            allowed = np.isin(np.arange(len(logits)), params.allowed_token_ids)
            logits[~allowed] = -np.inf
        for word in params.bad_words_token_ids or ():
            *before, last = word
            if not before or list(output[-len(before) :]) == before:
                logits[last] = -np.inf
        if params.structured_outputs is not None:
            allowed = np.isin(np.arange(len(logits)), legal(params.structured_outputs, output))
            logits[~allowed] = -np.inf
        if len(output) < params.min_tokens:
            logits[list(params.all_stop_token_ids)] = -np.inf
        if params.temperature == 0:
            return np.eye(len(logits))[int(np.argmax(logits))]
        logits = logits / params.temperature
        if params.min_p:
            weights = np.exp(logits - logits.max())
            logits = np.where(weights < params.min_p, -np.inf, logits)
        return restricted(logits, params)

    def law(self, params: Any, prompt: Text, length: int) -> Law:
        """The joint law of the first ``length`` tokens, shorter where the text ends by itself."""
        law: Law = {}

        def walk(output: Text, mass: float) -> None:
            if len(output) == length or (output and ends(params, output[-1])):
                law[output] = mass
                return
            for token, share in enumerate(self.p(params, prompt, output)):
                if share:
                    walk((*output, token), mass * float(share))

        walk((), 1.0)
        return law


def legal(structure: Any, output: Text) -> list[int]:
    """The ids that a regex or JSON schema leaves after ``output``, found by trying every text."""
    wanted = structure.regex
    if structure.json is not None:
        assert list(structure.json["properties"]) == ["a"]  # the only schema that is known here
        wanted = r'\{"a":(true|false)\}'
    return sorted(_continuations(wanted).get(output, ()))


@functools.cache
def _continuations(regex: str) -> dict[Text, set[int]]:
    found: dict[Text, set[int]] = {}
    for length in range(LONGEST + 1):
        for text in itertools.product(range(END + 1, len(WORDS)), repeat=length):
            if re.fullmatch(regex, "".join(WORDS[token] for token in text)):
                whole = (*text, END)
                for place, token in enumerate(whole):
                    found.setdefault(whole[:place], set()).add(token)
    return found


def worst_of(bench: Any, prompt: Text, record: Sequence[Any]) -> float:
    """The largest error of a probability in rows that were judged, against the model's own.

    A row after a draft that ends the text is of no use to anybody.
    """
    worst = 0.0
    for row in record:
        if any(ends(row.params, token) for token in row.output):
            continue
        expected = bench.reference.p(row.params, prompt, row.output)
        if row.params.temperature == 0:
            found = np.eye(len(expected))[int(np.argmax(row.scores))]
        else:
            weights = np.empty(len(row.scores))
            target_weights(row.scores, weights)
            found = weights / weights.sum()
        assert np.isfinite(expected).all() and np.isfinite(found).all()
        worst = max(worst, float(np.abs(found - expected).max()))
    return worst


def ends(params: Any, token: int) -> bool:
    return not params.ignore_eos and token in params.all_stop_token_ids


def penalised(logits: np.ndarray, params: Any, prompt: Text, output: Text) -> np.ndarray:
    seen = np.isin(np.arange(len(logits)), (*prompt, *output))
    factor = np.where(logits > 0, 1 / params.repetition_penalty, params.repetition_penalty)
    logits = np.where(seen, logits * factor, logits)
    counts = np.bincount(output, minlength=len(logits)) if output else np.zeros(len(logits))
    return logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def restricted(logits: np.ndarray, params: Any) -> np.ndarray:
    """Top-k, then top-p over what it leaves; the largest always stays."""
    if 0 < params.top_k < len(logits):
        logits = np.where(logits >= np.sort(logits)[-params.top_k], logits, -np.inf)
    weights = np.exp(logits - logits.max())
    p = weights / weights.sum()
    if params.top_p < 1:
        order = np.argsort(p, kind="stable")
        cut = np.cumsum(p[order]) <= 1 - params.top_p
        cut[-1] = False
        p[order[cut]] = 0
    return p / p.sum()


def p_value(law: Law, seen: Sequence[Text], least: float = 5.0) -> float:
    """Chi-square of texts against a law, cells with fewer than ``least`` expected pooled."""
    counts, n = Counter(seen), len(seen)
    if any(text not in law for text in counts):
        return 0.0  # what has no mass has been seen
    cells, rest = [], [0.0, 0.0]
    for text, mass in law.items():
        if mass * n >= least:
            cells.append((counts[text], mass * n))
        else:
            rest[0] += counts[text]
            rest[1] += mass * n
    if rest[1] >= least:
        cells.append((rest[0], rest[1]))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    freedom = max(len(cells) - 1, 1)
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2)))
