"""What ``draftwire doctor`` does once its options are known to make sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from draftwire.cli.drafters import explained, require_limits
from draftwire.cli.generate import SEEDED_DEADLINE_MS
from draftwire.cli.main import failure
from draftwire.cli.models import Target
from draftwire.cli.options import LayoutChoice
from draftwire.cli.progress import Counting
from draftwire.cli.prompts import Prompt
from draftwire.engines.registry import compare_tokenizers, read_tokenizer
from draftwire.errors import ExitCode, ProtocolError
from draftwire.kernels.registry import kernels_for
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, is_loopback
from draftwire.verifier.estimate import Estimate, Measured, Wanted, advice, at, best
from draftwire.verifier.examine import PINGS, measure
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.agreement import Agreed, reply_bytes
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet

SUPPORTS: Final = (16, 32, 64, 256)
_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What ``draftwire doctor`` was asked to look at, checked."""

    drafter: Address
    target: Path | None
    drafter_tokenizer: Path | None
    prompt: Prompt
    temperature: float
    max_tokens: int
    depth: int
    layout: LayoutChoice
    deadline_ms: float
    draft_identity: bytes
    device: str
    kernels: str
    threads: int
    as_json: bool
    security: Security | None


@dataclass
class Findings:
    """What has been found so far, in the order that it was looked for."""

    say: Callable[[str], None]
    checks: list[dict[str, str]] = field(default_factory=list)

    def note(self, name: str, text: str) -> None:
        """Remember a check that is passed, and say it."""
        self.checks.append({"check": name, "found": text})
        self.say(f"{name:<12} {text}")


def examine_and_print(options: DoctorOptions) -> ExitCode:
    """Examine, print lines or one object, and return the exit code; errors raise as ever."""
    findings = Findings((lambda text: None) if options.as_json else click.echo)
    try:
        kernels_for(options.kernels, options.device)  # missing ones are said before a model loads
        target = Target(options.target, device=options.device, threads=options.threads)
        return _examine(options, target, findings)
    except Exception as error:
        if options.as_json:
            click.echo(json.dumps({"checks": findings.checks, "error": failure(error)}))
        raise


def _examine(options: DoctorOptions, target: Target, findings: Findings) -> ExitCode:
    engine = target.engine
    if options.drafter_tokenizer is not None:
        theirs = read_tokenizer(options.drafter_tokenizer, role="drafter")
        findings.note(
            "vocabulary", compare_tokenizers((target.tokenizer, engine.vocab_size), theirs)
        )
    with RemoteDrafter(
        options.drafter,
        engine,
        deadline=options.deadline_ms / 1e3,
        connect_timeout=options.deadline_ms / 1e3,
        draft_identity=options.draft_identity,
        security=options.security,
    ) as drafter:
        try:
            agreed = drafter.connect()
        except ProtocolError as error:
            raise explained(error, options.drafter) from error
        policy = _policy(options, agreed, engine.vocab_size)
        _tell_agreed(findings, options, agreed, target)
        require_limits(agreed, policy)
        prompt = target.encode_prompt(options.prompt)
        sampling = Sampling(temperature=options.temperature, seed=1, max_tokens=options.max_tokens)
        dense = LayoutSet.DENSE in agreed.layouts
        with Counting("measuring", _PARTS) as counting:
            measured = measure(
                engine,
                drafter,
                prompt,
                sampling,
                policy,
                dense=dense,
                step=counting.advance,
                kernels=options.kernels,
            )
    estimates = _estimates(measured, agreed, policy.depth)
    layout = str(replace(options.layout, support=policy.support))
    asked = at(measured, layout, policy.depth, _size(policy, agreed.vocab_size, policy.depth))
    seeded = SEEDED_DEADLINE_MS / 1e3
    wanted = Wanted(layout, policy.depth, seeded, engine.max_context, agreed.max_context)
    todo = list(advice(measured, asked, estimates, wanted))
    if is_loopback(options.drafter.host) and not options.threads:
        todo.append(
            "if the drafter runs on this machine, and not behind a tunnel, give both programs"
            " --threads 1, or a share of the CPUs each: with all threads each slows the other"
        )
    pays = max(each.rate for each in estimates) > measured.alone
    _tell_measured(findings, measured, options.max_tokens)
    if options.as_json:
        click.echo(json.dumps(_as_dict(findings, measured, estimates, todo, pays)))
    else:
        _print(measured, estimates, todo)
    return ExitCode.OK if pays else ExitCode.FAILURE


def _policy(options: DoctorOptions, agreed: Agreed, vocab_size: int) -> ProposalPolicy:
    """Return what is measured: as asked, but no deeper or wider than the drafter offers."""
    depth = min(options.depth, agreed.max_depth)
    support = min(options.layout.support, agreed.max_support, vocab_size)
    return ProposalPolicy(options.layout.layout, depth, options.temperature, support=support)


def _tell_agreed(
    findings: Findings, options: DoctorOptions, agreed: Agreed, target: Target
) -> None:
    findings.note("reached", f"a drafter listens at {options.drafter}")
    if options.security is None:
        known = "asks for no key; nothing hides the text on the way"
    elif isinstance(options.security, PresharedKey):
        known = "both sides have proved the same key; nothing hides the text on the way"
    else:
        known = "certificates are proved both ways, and the text is hidden on the way"
    findings.note("identity", known)
    findings.note("version", f"wire {agreed.version.name.lower()} on both sides")
    findings.note(
        "pair", f"one tokenizer and one vocabulary of {agreed.vocab_size:,} ids on both sides"
    )
    if target.self_test:
        findings.note("self-test", target.self_test)
    findings.note(
        "checkpoints",
        f"drafter {agreed.draft_identity.hex()} (--draft-identity),"
        f" target {agreed.target_identity.hex()} (--target-identity of serve)",
    )
    findings.note(
        "context",
        f"{agreed.max_context:,} tokens here, {target.engine.max_context:,} of the target",
    )
    layouts = ", ".join(
        each.name.lower() for each in LayoutSet if each in agreed.layouts and each.name
    )
    findings.note(
        "limits",
        f"{layouts}; depth up to {agreed.max_depth}, support up to {agreed.max_support},"
        f" {agreed.max_sessions} sessions",
    )
    told = "told to the drafter" if agreed.mirrors else "not told: the drafter knows none"
    findings.note("processors", f"penalties, bias and bad words of a request are {told}")


def _tell_measured(findings: Findings, measured: Measured, tokens: int) -> None:
    ms = 1e3
    findings.note("round trip", f"{measured.round_trip * ms:.2f} ms (median of {PINGS} PINGs)")
    rate = "too fast to tell from the drafting, or no dense layout to time"
    if measured.byte:
        rate = f"{8 / measured.byte / 1e6:,.0f} Mbit/s, unpacking included"
    findings.note("bandwidth", rate)
    findings.note("target", f"{measured.target * ms:.2f} ms a pass")
    findings.note("drafter", f"{measured.draft * ms:.2f} ms a token")
    shares = "  ".join(f"{share:.2f}" for share in measured.accepted)
    findings.note("acceptance", f"{shares}  by position, in {tokens} tokens")


def _estimates(measured: Measured, agreed: Agreed, depth: int) -> list[Estimate]:
    vocab, choices = agreed.vocab_size, []
    if LayoutSet.SPARSE in agreed.layouts:
        widest = min(agreed.max_support, vocab)
        choices = [LayoutChoice(Layout.SPARSE, k) for k in SUPPORTS if k <= widest]
    if LayoutSet.DENSE in agreed.layouts:
        choices.append(LayoutChoice(Layout.DENSE, 0))
    return [
        best(
            measured,
            str(choice),
            [reply_bytes(choice.layout, vocab, k, choice.support) for k in range(1, depth + 1)],
        )
        for choice in choices
    ]


def _size(policy: ProposalPolicy, vocab_size: int, depth: int) -> int:
    return reply_bytes(policy.layout, vocab_size, depth, policy.support)


def _print(measured: Measured, estimates: list[Estimate], todo: list[str]) -> None:
    click.echo()
    click.echo(
        f"{'estimate':<12} {'depth':>5} {'tokens/round':>13} {'round ms':>9} {'tokens/s':>9}"
    )
    alone = f"{'target-only':<12} {'-':>5} {1.0:>13.2f}"
    click.echo(f"{alone} {measured.target * 1e3:>9.2f} {measured.alone:>9.1f}")
    for each in estimates:
        click.echo(
            f"{each.layout:<12} {each.depth:>5} {each.tokens:>13.2f} {each.seconds * 1e3:>9.2f}"
            f" {each.rate:>9.1f}"
        )
    click.echo()
    for text in todo or ["nothing to change"]:
        click.echo(f"- {text}")


def _as_dict(
    findings: Findings,
    measured: Measured,
    estimates: list[Estimate],
    todo: list[str],
    pays: bool,
) -> dict[str, Any]:
    return {
        "checks": findings.checks,
        "measured": asdict(measured),
        "target_only_tokens_per_second": measured.alone,
        "estimates": [asdict(each) | {"tokens_per_second": each.rate} for each in estimates],
        "advice": todo,
        "pays": pays,
    }
