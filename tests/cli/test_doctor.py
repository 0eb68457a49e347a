"""``draftwire doctor`` on tiny models: what it finds, what it says and how it ends."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from draftwire.errors import ExitCode, PairMismatchError
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet, WireVersion
from tests.cli.conftest import Cli, Pair, Ran, Serving

CHECKS = [
    "reached",
    "identity",
    "version",
    "pair",
    "self-test",
    "checkpoints",
    "context",
    "limits",
    "processors",
    "round trip",
    "bandwidth",
    "target",
    "drafter",
    "acceptance",
]


def doctor(cli: Cli, pair: Pair, address: str, *more: str) -> Ran:
    models = ("--target", str(pair.target), "--prompt", "w3 w7 w9", "--threads", "1")
    # A deadline that a busy machine keeps: a proposal that is lost while it is timed ends it all.
    asked = ("--max-tokens", "16", "--depth", "3", "--deadline-ms", "60000")
    return cli("doctor", address, *models, *asked, *more)


def test_a_usable_drafter_is_examined_in_words_and_as_json(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    with serving() as address:
        said = doctor(cli, pair, address, "--layout", "sparse:8")
        told = doctor(cli, pair, address, "--layout", "sparse:8", "--json")
    assert said.code in (ExitCode.OK, ExitCode.FAILURE), said.err
    for name in (*CHECKS, "estimate", "target-only", "sparse:16", "dense"):
        assert f"\n{name}" in f"\n{said.out}"
    assert "\n- " in said.out
    found = json.loads(told.out)
    assert [check["check"] for check in found["checks"]] == CHECKS
    assert [each["layout"] for each in found["estimates"]] == ["sparse:16", "sparse:32", "dense"]
    assert all(each["tokens_per_second"] > 0 for each in found["estimates"])
    best = max(each["tokens_per_second"] for each in found["estimates"])
    assert found["pays"] is (best > found["target_only_tokens_per_second"])
    assert told.code == (ExitCode.OK if found["pays"] else ExitCode.FAILURE)


def test_programs_on_one_machine_are_told_to_share_its_cpus(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    with serving() as address:
        shares = doctor(cli, pair, address, "--json")
        greedy = doctor(cli, pair, address, "--json", "--threads", "0")
    for ran, told in ((shares, False), (greedy, True)):
        assert any("--threads 1" in text for text in json.loads(ran.out)["advice"]) is told


def test_nobody_there(cli: Cli, pair: Pair) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    ran = doctor(cli, pair, address, "--json")
    assert ran.code == ExitCode.UNAVAILABLE
    assert json.loads(ran.out)["checks"] == []
    assert address in ran.err


def test_no_pair_another_version_and_a_layout_that_is_not_offered(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    with serving(pair.stranger) as address:
        ran = doctor(cli, pair, address)
    assert ran.code == ExitCode.CONFIGURATION and "tokenizer" in ran.err
    with serving(version=WireVersion.V1, layouts=LayoutSet.IDS_ONLY) as address:
        ran = doctor(cli, pair, address)
    assert ran.code == ExitCode.PROTOCOL and "wire version" in ran.err
    with serving(layouts=LayoutSet.SPARSE) as address:
        ran = doctor(cli, pair, address, "--layout", "dense")
    assert ran.code == ExitCode.CONFIGURATION and "--layouts dense" in ran.err


def test_metrics_logs_and_breaker_of_generate(cli: Cli, pair: Pair, serving: Serving) -> None:
    begin = ("generate", "--target", str(pair.target), "--prompt", "w3", "--threads", "1")
    with serving() as address:
        telemetry = ("--metrics-port", "0", "--log-level", "info", "--log-format", "json")
        ran = cli(*begin, "--max-tokens", "8", "--drafter", address, "--breaker", *telemetry)
    assert ran.code == ExitCode.OK, ran.err
    assert "metrics on http://127.0.0.1:" in ran.err
    events = [json.loads(line) for line in ran.err.splitlines() if line.startswith("{")]
    assert any(event.get("event") == "drafter_found" for event in events)
    assert all("w3" not in json.dumps(event) for event in events)
    idle = cli(*begin, "--no-breaker")
    assert idle.code == ExitCode.USAGE and "--drafter" in idle.err


def test_one_checkpoint_of_the_drafter_is_taken_and_another_is_refused(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    from draftwire.engines.hf.identity import checkpoint_identity

    drafter, target = (checkpoint_identity(each).hex() for each in (pair.drafter, pair.target))
    begin = ("generate", "--target", str(pair.target), "--prompt", "w3", "--threads", "1")
    begin += ("--max-tokens", "8", "--seed", "1", "--no-breaker", "--json")
    begin += ("--deadline-ms", "60000", "--drafter")
    with serving() as address:
        found = json.loads(doctor(cli, pair, address, "--draft-identity", drafter, "--json").out)
        (checkpoints,) = [each for each in found["checks"] if each["check"] == "checkpoints"]
        assert drafter in checkpoints["found"] and target in checkpoints["found"]
        assert json.loads(cli(*begin, address, "--draft-identity", drafter).out)["drafted"]
        for refused in (
            cli(*begin, address, "--draft-identity", target),
            doctor(cli, pair, address, "--draft-identity", target),
        ):
            assert refused.code == ExitCode.CONFIGURATION
            assert "--draft-identity" in refused.err and "(draft_identity)" in refused.err
        for wrong in ("ab", "x" * 64, drafter + "00"):
            ran = cli(*begin, address, "--draft-identity", wrong)
            assert ran.code == ExitCode.USAGE and "64 hexadecimal digits" in ran.err
    idle = cli(*begin[:-3], "--draft-identity", drafter)
    assert idle.code == ExitCode.USAGE and "--drafter" in idle.err


def test_a_drafter_for_one_target_turns_others_away(cli: Cli, pair: Pair, serving: Serving) -> None:
    from draftwire.engines.hf.identity import checkpoint_identity

    with serving(target_identity=checkpoint_identity(pair.target)) as address:
        assert doctor(cli, pair, address).code in (ExitCode.OK, ExitCode.FAILURE)
    with serving(target_identity=checkpoint_identity(pair.drafter)) as address:
        ran = doctor(cli, pair, address)
    assert ran.code == ExitCode.CONFIGURATION
    assert "--target-identity" in ran.err


def test_m8_differences_are_shown_and_a_shared_vocabulary_is_drafted_on(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    from draftwire.engines.hf import load_drafter, read_tokenizer
    from draftwire.engines.registry import ServedVocabulary

    shows = ("--drafter-tokenizer", str(pair.stranger), "--json")
    with serving(pair.stranger) as address:
        ran = doctor(cli, pair, address, *shows)
    assert ran.code == ExitCode.CONFIGURATION
    assert "--vocabulary shared --target-tokenizer FOLDER" in ran.err
    (vocabulary,) = json.loads(ran.out)["checks"]
    assert "47 ids mean the same on both sides, 1 do not" in vocabulary["found"]
    assert "5 is 'w5' in the target, 'other' in the drafter" in vocabulary["found"]

    target = ServedVocabulary(*read_tokenizer(pair.target, role="target"))
    engine = load_drafter(pair.stranger, device="cpu", serve_as=target)
    with serving(engine=engine) as address:
        ran = doctor(cli, pair, address, *shows)
    assert ran.code in (ExitCode.OK, ExitCode.FAILURE), ran.err
    assert [each["check"] for each in json.loads(ran.out)["checks"]][:2] == [
        "vocabulary",
        "reached",
    ]


def test_m8_a_drafter_in_this_process_says_what_differs_or_drafts_on_what_is_shared(
    pair: Pair,
) -> None:
    from draftwire.cli.drafters import local_drafter
    from draftwire.cli.models import Target
    from draftwire.verifier.generate import generate
    from draftwire.verifier.sampling import Sampling

    target = Target(pair.target, device="cpu", threads=1)
    policy = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=8)
    with pytest.raises(PairMismatchError, match="first differences: 5 is 'w5' in the target") as no:
        local_drafter(pair.stranger, target, policy)
    assert no.value.field == "tokenizer_hash" and "--vocabulary shared" in str(no.value)
    with local_drafter(pair.stranger, target, policy, shared=True) as drafter:
        sampling = Sampling(seed=1, max_tokens=12)
        with generate(target.engine, drafter, [3, 5, 7], sampling, policy) as running:
            assert len(list(running)) > 1
        assert running.report.drafted and not running.report.misses
