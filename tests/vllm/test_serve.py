"""``vllm serve`` with a drafter in another process, over HTTP, with OpenAI's own client."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from draftwire.transport.keys import write_new_key
from draftwire.transport.tcp import free_address
from tests.vllm.servers import flags, metrics, start_drafter, total, vllm_serve

PROMPT = "import os\n\n\ndef read(path):\n"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["list", "tuple"]}, "frozen": {"type": "boolean"}},
    "required": ["kind", "frozen"],
    "additionalProperties": False,
}


@dataclass
class Served:
    """The server's URL, a client of it, and its drafter."""

    url: str
    client: OpenAI
    folder: Path
    port: int
    key: Path
    drafter: subprocess.Popen[str]

    def complete(self, **arguments: Any) -> Any:
        asked = {"model": "target", "prompt": PROMPT, "max_tokens": 24, "temperature": 0.8}
        return self.client.completions.create(**{**asked, **arguments})

    def text(self, **arguments: Any) -> str:
        return str(self.complete(**arguments).choices[0].text)

    def streamed(self, **arguments: Any) -> list[str]:
        return [chunk.choices[0].text for chunk in self.complete(stream=True, **arguments)]


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target, drafter = pair
    port, at = free_address().port, free_address().port
    folder = tmp_path_factory.mktemp("serve")
    log, key = folder / "vllm.log", folder / "key"
    write_new_key(key)
    process = start_drafter(drafter, at, "--psk-file", str(key))
    one = Served("", None, drafter, at, key, process)  # type: ignore[arg-type]
    try:
        # A model that was never shown JSON would fill it with blanks, of which any number is JSON
        compact = [
            "--structured-outputs-config",
            '{"backend": "xgrammar", "disable_any_whitespace": true}',
            "--per-request-spec-decode-metrics",
            "summary",
        ]
        with vllm_serve(
            target, port, [*flags(at, psk_file=str(key), breaker=False), *compact], log
        ) as url:
            one.url, one.client = url, OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
            yield one
    finally:
        one.drafter.kill()
        one.drafter.wait()
        print(log.read_text()[-3000:])


def test_streaming_gives_the_same_text_as_waiting(served: Served) -> None:
    whole = served.text(seed=1)
    pieces = served.streamed(seed=1)
    assert "".join(pieces) == whole
    assert len(pieces) > 1


def mixed(served: Served) -> list[Any]:
    """Eight requests that have nothing in common."""
    endless = {"extra_body": {"ignore_eos": True}}
    schema = {"extra_body": {"structured_outputs": {"json": SCHEMA}}}
    return [
        lambda: served.text(seed=1),
        lambda: "".join(served.streamed(seed=2)),
        lambda: served.text(temperature=0),
        lambda: served.text(temperature=1.2, top_p=0.8, seed=3),
        lambda: served.text(seed=4, presence_penalty=0.5, frequency_penalty=0.5),
        lambda: served.text(seed=5, max_tokens=60, **schema),
        lambda: served.text(seed=6, stop=["return"], max_tokens=40),
        lambda: [choice.text for choice in served.complete(n=2, seed=7, **endless).choices],
    ]


def test_a_mixed_batch_of_eight_gives_each_request_what_it_gets_alone(served: Served) -> None:
    """Seeded texts as far as the engine's own numerics allow: printed where they part."""
    alone = [ask() for ask in mixed(served)]
    with ThreadPoolExecutor(8) as pool:
        together = [each.result() for each in [pool.submit(ask) for ask in mixed(served)]]
    same = [one == other for one, other in zip(alone, together, strict=True)]
    print("the same alone and in a batch of eight:", same)
    assert sum(same) >= 7, list(zip(alone, together, strict=True))
    for texts in (alone, together):
        assert set(json.loads(texts[5])) == {"kind", "frozen"}
        assert "return" not in texts[6]
        assert texts[7][0] != texts[7][1]


def test_our_counters_stand_beside_vllms_and_agree_with_them(served: Served) -> None:
    served.text(seed=11)
    samples = metrics(served.url)
    accepted = total(samples, "draftwire:accepted_tokens_total")
    assert accepted > 0
    # Of a proposal that was cut off, ours counts a draft more: the one judged at the cut.
    vllm = total(samples, "vllm:spec_decode_num_accepted_tokens_total")
    assert vllm <= accepted <= vllm + total(samples, "draftwire:truncated_tokens_total")
    drafted = total(samples, "draftwire:proposed_tokens_total")
    judged = total(samples, "draftwire:draft_tokens_total")
    assert drafted == judged + total(samples, "draftwire:truncated_tokens_total")
    assert samples["draftwire:sessions"] == 0
    assert total(samples, "draftwire:sent_bytes_total") > 0


def test_a_client_that_goes_away_ends_its_session(served: Served) -> None:
    before = metrics(served.url)
    endless = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    with served.complete(stream=True, seed=1, **endless) as stream:
        for count, _ in enumerate(stream):
            if count == 3:
                break
    end = time.monotonic() + 30
    while (now := metrics(served.url))["draftwire:sessions"] and time.monotonic() < end:
        served.text(max_tokens=1)  # vLLM tells its workers of ends with the next step
    assert now["draftwire:sessions"] == 0
    assert now["draftwire:rounds_total"] < before["draftwire:rounds_total"] + 300


def test_bias_and_min_p_are_served_with_drafts(served: Served) -> None:
    """Case M17: a bias of 100 is all of p; with min_p 1 only the likeliest is left, as greedy."""
    before = total(metrics(served.url), "draftwire:accepted_tokens_total")
    biased = served.complete(logit_bias={"300": 100.0}, seed=3, max_tokens=12)
    one = served.complete(logit_bias={"300": 100.0}, seed=4, max_tokens=1).choices[0].text
    assert biased.choices[0].text == one * 12
    endless = {"ignore_eos": True}
    greedy = served.text(temperature=0, extra_body=endless)
    assert served.text(temperature=1.0, seed=5, extra_body={"min_p": 1.0, **endless}) == greedy
    assert total(metrics(served.url), "draftwire:accepted_tokens_total") > before


def test_a_request_may_go_without_drafts(served: Served) -> None:
    endless = {"ignore_eos": True}
    greedy = served.text(temperature=0, extra_body=endless)
    before = total(metrics(served.url), "draftwire:drafts_total")
    plain = served.text(temperature=0, extra_body={"vllm_xargs": {"draftwire_depth": 0}, **endless})
    assert total(metrics(served.url), "draftwire:drafts_total") == before
    assert plain == greedy
    with pytest.raises(BadRequestError, match="draftwire_depth must be a whole number from 0"):
        served.text(extra_body={"vllm_xargs": {"draftwire_depth": 99}})


def test_answers_carry_vllms_own_figures_of_the_drafts(served: Served) -> None:
    """Counted by vLLM itself, under its flag, in the answer's ``metrics.speculative_decoding``."""
    answer = served.complete(temperature=0, extra_body={"ignore_eos": True}).model_dump()
    figures = answer["metrics"]["speculative_decoding"]
    histogram = figures["acceptance_histogram"]
    assert figures["num_spec_tokens"] == 5 and len(histogram) == 6
    assert figures["num_spec_steps"] == sum(histogram) > 0
    accepted = sum(count * drafts for drafts, count in enumerate(histogram))
    assert 0 < figures["num_accepted_draft_tokens"] == accepted <= figures["num_draft_tokens"]
    assert figures["mean_acceptance_length"] == 1 + accepted / sum(histogram)
    assert figures["draft_acceptance_rate"] == accepted / figures["num_draft_tokens"]


def test_unsupported_parameters_are_refused_in_vllms_words(served: Served) -> None:
    with pytest.raises(BadRequestError, match="min_p must be in"):
        served.text(extra_body={"min_p": 1.5})
    with pytest.raises(BadRequestError, match="out-of-vocab"):
        served.text(logit_bias={"999999": 3.0})


def test_a_drafter_killed_in_the_middle_costs_no_text(served: Served) -> None:
    """Greedy text does not depend on the drafter at all; sampled text has the same law."""
    greedy = {"temperature": 0, "max_tokens": 120, "extra_body": {"ignore_eos": True}}
    with_drafter = served.text(**greedy)
    pieces = []
    for count, chunk in enumerate(served.complete(stream=True, **greedy)):
        pieces.append(chunk.choices[0].text)
        if count == 5:
            served.drafter.kill()
            served.drafter.wait()
    assert "".join(pieces) == with_drafter
    assert served.text(seed=1, max_tokens=40)  # with no drafter there
    samples = metrics(served.url)
    away = {key: value for key, value in samples.items() if key.startswith("draftwire:misses")}
    assert any("no_connection" in key or "disconnected" in key for key in away)
    served.drafter = start_drafter(served.folder, served.port, "--psk-file", str(served.key))
    before = total(metrics(served.url), "draftwire:drafts_total")
    for seed in range(20, 80):
        served.text(seed=seed, max_tokens=16)
        if total(metrics(served.url), "draftwire:drafts_total") > before:
            return
    raise AssertionError("the drafter is back, and nothing is drafted")
