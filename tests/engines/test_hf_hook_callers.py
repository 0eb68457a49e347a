"""Ways in which scripts call the hook: wrapped, with stop strings, with a target that fails."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, TextIteratorStreamer

from draftwire.engines.hf import HfTargetEngine, remote_speculative
from draftwire.verifier.generate import generate
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import Finish
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer
from tests.engines.hook_calls import PROMPT, V, Written, local_drafter, run, target_model

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


@pytest.mark.parametrize("wrapped", ["lambda", "partial"])
def test_m36_a_wrapped_hook_keeps_the_streamer(wrapped: str) -> None:
    """Case M36: a reader of the stream never waits for ever."""
    model, written = target_model(), Written()
    drafter = local_drafter(model)
    ways: dict[str, Callable[..., Any]] = {
        "lambda": lambda *args, **kwargs: remote_speculative(*args, drafter=drafter, **kwargs),
        "partial": functools.partial(remote_speculative, drafter=drafter),
    }
    ids = torch.tensor([PROMPT])
    text = model.generate(ids, custom_generate=ways[wrapped], streamer=written, **GREEDY)
    assert torch.equal(text, run(model, [PROMPT], **GREEDY))
    assert written.ids == text[0].tolist()
    assert written.ended == 1


def _bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One printable character a token."""
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_m30_stop_strings_find_the_tokenizer_of_the_call() -> None:
    """Case M30: ``generate(stop_strings=..., tokenizer=...)``."""
    tokenizer = _bytes_tokenizer()
    model = tiny_llama(len(tokenizer))
    plain = run(model, [PROMPT], **GREEDY)[0, len(PROMPT) :].tolist()
    options = GREEDY | {"stop_strings": [tokenizer.decode(plain[3])], "tokenizer": tokenizer}
    expected = run(model, [PROMPT], **options)
    drafter = local_drafter(model, model, vocab_size=len(tokenizer))
    reports: list[Report] = []
    text = run(model, [PROMPT], drafter, reports=reports, **options)
    assert torch.equal(text, expected)
    assert text.shape[1] < len(PROMPT) + 12
    assert reports[0].drafted


@pytest.mark.parametrize("how", ["eos_token_id", "generation_config"])
def test_m29_the_end_of_the_text_follows_the_options_of_the_engine(how: str) -> None:
    """Case M29: the processors and the end have one configuration."""
    model = tiny_llama(V)
    plain = run(model, [PROMPT], eos_token_id=None, **GREEDY)[0, len(PROMPT) :].tolist()
    end = plain[2]
    config = GenerationConfig(eos_token_id=end, pad_token_id=0, bos_token_id=0)
    options = {"eos_token_id": end} if how == "eos_token_id" else {"generation_config": config}
    engine = HfTargetEngine(model, tiny_tokenizer(V), identity=bytes(32), options=options)
    assert engine.end_tokens == {end}
    with generate(engine, None, PROMPT, Sampling(0.0, seed=1, max_tokens=12)) as running:
        tokens = [emission.token for emission in running]
    assert tokens == plain[: plain.index(end) + 1]
    assert running.report.finish is Finish.END_TOKEN


def test_m35_what_the_target_raises_comes_out_and_everything_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case M35: the reader of the stream is told that it is over, and the drafter serves on."""
    model = target_model()
    drafter = local_drafter(model)
    streamer = TextIteratorStreamer(tiny_tokenizer(V), timeout=30)  # type: ignore[no-untyped-call]
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(streamer))
    reader.start()
    forward, calls = model.forward, iter(range(100))

    @functools.wraps(forward)
    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(model, "forward", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(model, [PROMPT], drafter, streamer=streamer, **GREEDY)
    reader.join(30)
    assert not reader.is_alive()
    assert read
    assert drafter.open_requests == 0
    reports: list[Report] = []
    assert torch.equal(
        run(model, [PROMPT], drafter, reports=reports, **GREEDY), run(model, [PROMPT], **GREEDY)
    )
    assert reports[0].drafted
