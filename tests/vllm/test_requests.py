"""The life of requests: sessions, ends, chunks, preemption, aborts, deadlines, counts, seeds."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.transport.tcp import Address, TcpChannel, free_address
from draftwire.verifier.miss import MissReason
from tests.vllm.conftest import Bench
from tests.vllm.engines import runner_of, speculation_of, texts
from tests.vllm.servers import start_drafter

LONG = 50


def seeded(seed: int | None, **more: Any) -> Any:
    arguments = {"temperature": 1.0, "max_tokens": LONG, "ignore_eos": True, "seed": seed, **more}
    return SamplingParams(**arguments)


def spec_counters(engine: Any) -> dict[str, float]:
    """vLLM's own counters of speculation."""
    return {
        metric.name.removeprefix("vllm:spec_decode_num_"): metric.value
        for metric in engine.get_metrics()
        if metric.name.startswith("vllm:spec_decode") and hasattr(metric, "value")
    }


def preemptions(engine: Any) -> float:
    return sum(m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions")


def test_r13_seeded_texts_are_the_same_alone_and_in_any_batch(bench: Bench) -> None:
    """The batch of 70 does not fit into the cache: requests are preempted and come back."""
    alone = [texts(bench.engine, [(3, 4)], [seeded(seed)])[0] for seed in range(3)]
    before = preemptions(bench.engine)
    crowd = [seeded(seed) if seed < 3 else seeded(None, top_k=4) for seed in range(70)]
    together = texts(bench.engine, [(3, 4)] * 70, crowd)
    print("preempted", preemptions(bench.engine) - before, "same", together[:3] == alone)
    assert preemptions(bench.engine) > before
    assert [len(text) for text in together] == [LONG] * 70
    # Drafts are cut off where the steps are full, so rounds differ and with them the words: the
    # same law, other texts. Where no draft was cut off, the texts are the same.
    quiet = [seeded(seed) if seed < 3 else seeded(None, top_k=4) for seed in range(20)]
    assert texts(bench.engine, [(3, 4)] * 20, quiet)[:3] == alone


def test_n_outputs_of_one_request_have_seeds_of_their_own(bench: Bench) -> None:
    output = bench.engine.generate(
        [{"prompt_token_ids": [3, 4]}], SamplingParams(n=4, seed=5, max_tokens=20, ignore_eos=True)
    )[0]
    several = [tuple(each.token_ids) for each in output.outputs]
    assert len(set(several)) == 4


def test_r14_unseeded_requests_are_independent(bench: Bench) -> None:
    several = texts(bench.engine, [(3, 4)] * 20, [seeded(None)] * 20)
    assert len(set(several)) == 20


def test_chunks_of_a_prompt_propose_nothing(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    rounds = speculation.metrics["rounds"]
    # 440 tokens, of which a step takes 100
    prompts = [[(row + place) % 8 for place in range(55)] for row in range(8)]
    got = texts(bench.engine, prompts, [seeded(seed, max_tokens=2) for seed in range(8)])
    assert [len(text) for text in got] == [2] * 8
    # One or two rounds each, none for a chunk.
    assert 8 <= speculation.metrics["rounds"] - rounds <= 16


def test_l26_sessions_end_with_their_requests_however_they_end(bench: Bench) -> None:
    speculation, engine = speculation_of(bench.engine), bench.engine.llm_engine
    for name in ("finishes", "aborted"):
        engine.add_request(name, {"prompt_token_ids": [3, 4]}, seeded(1, max_tokens=12))
    for _ in range(3):
        engine.step()
    assert len(speculation.requests) == 2
    engine.abort_request(["aborted"])
    while engine.has_unfinished_requests():
        engine.step()
    engine.step()  # the engine tells its workers of ends with the next step
    assert not speculation.requests
    assert speculation.metrics["sessions"] == 0
    assert not speculation.client.open_requests


def test_l31_nothing_is_asked_for_once_a_text_has_ended(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    one = SamplingParams(
        temperature=1.0, seed=3, max_tokens=LONG, stop_token_ids=[0, 2, 3, 4, 5, 6, 7]
    )
    before = speculation.metrics["drafts"]
    assert len(texts(bench.engine, [(3, 4)], [one])[0]) <= 2
    assert speculation.metrics["drafts"] == before
    two = seeded(3, max_tokens=2)  # the second token has no room for a draft before it
    texts(bench.engine, [(3, 4)], [two])
    assert speculation.metrics["drafts"] == before


def test_t35_texts_reach_the_end_of_the_context(bench: Bench) -> None:
    """The rows near the end draft less and less; the others of the batch are not touched."""
    near, far = [(5,) * 59], [(3, 4)]
    got = texts(bench.engine, near + far, [seeded(1, max_tokens=30), seeded(2, max_tokens=30)])
    assert [len(text) for text in got] == [5, 30]


def test_vllms_counters_and_ours_agree(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    vllm, ours = spec_counters(bench.engine), speculation.metrics["accepted_tokens"]
    whole = speculation.metrics["proposed_tokens"]
    texts(bench.engine, [(3, 4)] * 10, [seeded(seed) for seed in range(10)])
    now = spec_counters(bench.engine)
    drafted = now["draft_tokens"] - vllm["draft_tokens"]
    accepted = now["accepted_tokens"] - vllm["accepted_tokens"]
    assert accepted == speculation.metrics["accepted_tokens"] - ours > 0
    # Some are proposed for a text that has ended.
    assert 0 <= speculation.metrics["proposed_tokens"] - whole - drafted <= 30
    assert now["drafts"] > vllm["drafts"]


@contextmanager
def patience(bench: Bench, deadline: float) -> Iterator[list[float]]:
    """Set the deadline of a step, in seconds, and keep how long each waited for drafts."""
    speculation, options = speculation_of(bench.engine), runner_of(bench.engine).drafter.options
    waits: list[float] = []
    propose, finish = type(speculation).propose, type(speculation).finish

    def timed(self: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        drafts = propose(self, *arguments)
        waits.append(time.perf_counter() - began)
        return drafts

    def ended(self: Any, *arguments: Any) -> None:
        began = time.perf_counter()
        finish(self, *arguments)
        waits.append(time.perf_counter() - began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(speculation), "propose", timed)
        patch.setattr(type(speculation), "finish", ended)
        usual = options.deadline
        object.__setattr__(options, "deadline", deadline)
        try:
            yield waits
        finally:
            object.__setattr__(options, "deadline", usual)


def test_a_silent_drafter_costs_its_deadline_and_no_more(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    misses = speculation.metrics.labelled("misses").get("missed_deadline", 0)
    asked = [seeded(seed, max_tokens=12) for seed in range(6)]
    with patience(bench, 0.2) as waits:
        bench.line.silent = True
        try:
            got = texts(bench.engine, [(3, 4)] * 6, asked)
        finally:
            bench.line.silent = False
            bench.line.cut()
    assert [len(text) for text in got] == [12] * 6
    assert speculation.metrics.labelled("misses")["missed_deadline"] > misses
    assert 0.2 <= max(waits) < 0.35  # one deadline for all rows, not one a row


def test_a_stopped_drafter_holds_no_step_beyond_the_deadline(bench: Bench, tiny: Path) -> None:
    """A process under SIGSTOP still takes connections and bytes; it answers nothing, not HELLO."""
    speculation, engine, port = (
        speculation_of(bench.engine),
        bench.engine.llm_engine,
        free_address().port,
    )
    process, connection = start_drafter(tiny, port), speculation.client.connection
    usual, stopped = connection.open_channel, Address("127.0.0.1", port)
    connection.open_channel = lambda until: TcpChannel.connect(stopped, until)
    bench.line.cut()
    try:
        for seed in range(6):
            engine.add_request(f"r{seed}", {"prompt_token_ids": [3, 4]}, seeded(seed))
        before = speculation.metrics["drafts"]
        while speculation.metrics["drafts"] < before + 12:
            assert engine.has_unfinished_requests()
            engine.step()
        with patience(bench, 0.1) as waits:
            process.send_signal(signal.SIGSTOP)
            for _ in range(4):
                engine.step()
            engine.abort_request(["r0"])
            speculation.client.disconnect()  # and now it has to connect to what is stopped
            while engine.has_unfinished_requests() and len(waits) < 30:
                engine.step()
        print("the longest waits:", sorted(waits)[-4:])
        assert 0.1 <= max(waits) < 0.25
        process.send_signal(signal.SIGCONT)
        while engine.has_unfinished_requests():
            engine.step()
        before, end = speculation.metrics["drafts"], time.monotonic() + 20
        while speculation.metrics["drafts"] == before and time.monotonic() < end:
            texts(bench.engine, [(3, 4)], [seeded(9, max_tokens=12)])
        assert speculation.metrics["drafts"] > before
    finally:
        process.kill()
        process.wait()
        connection.open_channel = usual
        engine.step()


def test_drafting_that_does_not_pay_pauses_for_requests_without_a_seed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculation = speculation_of(bench.engine)
    propose_all = type(speculation.client).propose_all

    def slow(*arguments: Any) -> Any:
        time.sleep(0.1)  # many passes of this target, on a busy machine too
        return propose_all(*arguments)

    monkeypatch.setattr(type(speculation.client), "propose_all", slow)
    monkeypatch.setattr(speculation, "breaker", BatchBreaker())
    texts(bench.engine, [(3, 4)] * 8, [seeded(None)] * 8)
    paused = speculation.metrics.labelled("misses")[MissReason.BREAKER_OPEN.value]
    assert paused > 8 * LONG // 2
    steps = speculation.metrics["drafting_steps"]
    texts(bench.engine, [(3, 4)], [seeded(1)])
    assert speculation.metrics["drafting_steps"] > steps + 5
    assert speculation.metrics.labelled("misses")[MissReason.BREAKER_OPEN.value] == paused


def test_t37_a_drafter_that_is_back_drafts_for_the_same_requests(bench: Bench) -> None:
    speculation, engine = speculation_of(bench.engine), bench.engine.llm_engine
    engine.add_request("lasting", {"prompt_token_ids": [3, 4]}, seeded(9))
    for _ in range(4):
        engine.step()
    bench.line.cut()
    before = speculation.metrics["drafts"]
    while engine.has_unfinished_requests():
        engine.step()
        time.sleep(0.02)
    engine.step()
    assert speculation.metrics["drafts"] > before


def test_logprobs_are_those_of_the_reference(bench: Bench) -> None:
    import math

    request = seeded(4, max_tokens=16, logprobs=8)
    output = bench.engine.generate([{"prompt_token_ids": [3, 4]}], request)[0].outputs[0]
    plain = SamplingParams()
    for place, (token, shown) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        p = bench.reference.p(plain, (3, 4), tuple(output.token_ids[:place]))
        assert set(shown) == set(range(8))
        assert token in shown
        assert max(abs(math.exp(shown[v].logprob) - p[v]) for v in range(8)) < 2e-5
