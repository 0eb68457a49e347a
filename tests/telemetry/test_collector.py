"""Metrics: every metric is there, labels are bounded, and they cost nothing unread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolErrorCode
from draftwire.session.reasons import DropReason
from draftwire.telemetry.collector import register_metrics
from draftwire.telemetry.drafter_metrics import DRAFTER_METRICS
from draftwire.telemetry.metric_spec import markdown
from draftwire.telemetry.verifier_metrics import VERIFIER_METRICS
from draftwire.verifier.breaker import Breaker, BreakerState
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.miss import MissReason
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_DEPTH, Layout, Status
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.DENSE, 4, 1.0)
ROOT = Path(__file__).parents[2]
Samples = dict[tuple[str, str], float]


def scraped(registry: CollectorRegistry) -> Samples:
    """Samples by name and the one label's value."""
    out: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert len(sample.labels) <= 1
            out[sample.name, next(iter(sample.labels.values()), "")] = sample.value
    return out


def test_both_sides_after_some_texts() -> None:
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    target = ToyTarget(mixed(V, 2), V)
    registry = CollectorRegistry()
    with LocalDrafter(program, target, breaker=Breaker()) as drafter:
        register_metrics(program, registry)
        collector = register_metrics(drafter, registry)
        for seed in range(3):
            list(generate(target, drafter, (1,), Sampling(seed=seed, max_tokens=30), POLICY))
        assert drafter.breaker is not None
        found = scraped(registry)
        report = drafter.totals.sum()
        assert found["draftwire_generation_tokens_total", ""] == 90
        assert found["draftwire_requests_total", ""] == 3
        assert found["draftwire_rounds_total", "drafted"] == report.drafted_rounds
        assert found["draftwire_drafts_total", ""] == report.drafted_rounds
        assert found["draftwire_draft_tokens_total", ""] == report.verified
        assert found["draftwire_accepted_tokens_total", ""] == report.accepted
        whys = ("rejected", "overtaken", "after_end")
        unaccepted = sum(found["draftwire_unaccepted_tokens_total", why] for why in whys)
        assert unaccepted == report.verified - report.accepted
        assert (
            found["draftwire_accepted_tokens_per_pos_total", "0"] == report.accepted_by_position[0]
        )
        assert found["draftwire_round_trip_seconds_count", ""] == report.drafted_rounds
        assert found["draftwire_round_trip_seconds_bucket", "+Inf"] == report.drafted_rounds
        assert found["draftwire_breaker_state", drafter.breaker.state.value] == 1
        assert found["draftwire_misses_total", "baseline"] == report.misses[MissReason.BASELINE]
        assert found["draftwire_connected", ""] == 1
        assert found["draftwire_drafter_drafts_total", ""] == report.drafted_rounds
        assert found["draftwire_drafter_batch_size_count", ""] == report.drafted_rounds
        assert found["draftwire_drafter_open_connections", ""] == 1
        assert found["draftwire_drafter_open_sessions", ""] == 0
        assert found["draftwire_audit_failures_total", ""] == 0
        names = {name for name, _ in found}
        for spec in (*DRAFTER_METRICS, *VERIFIER_METRICS):
            one = {spec.exposed_name, f"{spec.name}_bucket"} & names
            assert one or spec.name == "draftwire_breaker_seconds_per_token", spec.name
        registry.unregister(collector)
        assert ("draftwire_generation_tokens_total", "") not in scraped(registry)


def test_every_reason_and_code_has_a_series_before_it_happens() -> None:
    """So that a rate or an alert on it is defined; and no other value can ever come."""
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    registry = CollectorRegistry()
    with LocalDrafter(program, ToyTarget(mixed(V, 2), V)) as drafter:
        register_metrics(program, registry)
        register_metrics(drafter, registry)
        found = scraped(registry)

    def values(name: str) -> set[str]:
        return {label for each, label in found if each == name}

    codes = {code.name.lower() for code in ProtocolErrorCode}
    assert values("draftwire_protocol_errors_total") == codes
    assert values("draftwire_drafter_refused_messages_total") == codes
    assert values("draftwire_dropped_messages_total") == {reason.value for reason in DropReason}
    assert values("draftwire_misses_total") == {r.value for r in (*DropReason, *MissReason)}
    assert values("draftwire_drafter_declined_total") == {
        status.name.lower() for status in Status if status is not Status.OK
    }
    assert values("draftwire_breaker_state") == {state.value for state in BreakerState}
    assert len(found) < 400 + 2 * MAX_DEPTH


def test_scraping_while_texts_are_made() -> None:
    """Another thread reads as fast as it can; every scrape is whole and counters only grow."""
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    target = ToyTarget(mixed(V, 2), V)
    registry = CollectorRegistry()
    with LocalDrafter(program, target) as drafter:
        register_metrics(program, registry)
        register_metrics(drafter, registry)
        done, seen = threading.Event(), [0.0]
        wrong: list[BaseException] = []

        def scrape() -> None:
            try:
                while not done.is_set():
                    tokens = scraped(registry)["draftwire_generation_tokens_total", ""]
                    assert tokens >= seen[-1]
                    seen.append(tokens)
                    time.sleep(0.002)
            except BaseException as error:
                wrong.append(error)

        thread = threading.Thread(target=scrape)
        thread.start()
        for seed in range(5):
            list(generate(target, drafter, (1,), Sampling(seed=seed, max_tokens=40), POLICY))
        done.set()
        thread.join(10)
        assert not wrong
        assert scraped(registry)["draftwire_generation_tokens_total", ""] == 200


def test_the_table_of_the_documentation_is_this_list() -> None:
    text = (ROOT / "docs/guides/operations.md").read_text()
    assert markdown(DRAFTER_METRICS) in text
    assert markdown(VERIFIER_METRICS) in text


def test_nobody_waits_for_the_library_who_does_not_ask_for_it() -> None:
    code = """
import sys
import draftwire, draftwire.verifier.remote, draftwire.drafter.server, draftwire.telemetry.collector
from draftwire.cli.main import run
run(["serve", "--help"]); run(["generate", "--help"])
print("prometheus_client" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"
