"""One STEP and its reply, both sides in memory, so that taking the reply can be timed by itself."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels import cpu
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.link import Link
from draftwire.session.proposal import Draft, DraftTask, Proposal, Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.agreement import Agreed, reply_bytes
from draftwire.wire.messages import Hello, ProposalPolicy, Step
from draftwire.wire.registry import Layout, LayoutSet, Role
from testing.harness.joined import hello

KEY = 7
PROMPT = list(range(16))


def hello_of(role: Role, vocab: int, policy: ProposalPolicy) -> Hello:
    """Return the HELLO of a peer that can do exactly what this policy asks."""
    support = max(1, policy.support)
    return hello(
        role,
        LayoutSet(1 << policy.layout),
        vocab_size=vocab,
        max_sessions=1,
        max_slots=1,
        max_depth=policy.depth,
        max_support=support,
        max_context=4096,
        max_step_bytes=1 << 16,
        max_reply_bytes=reply_bytes(policy.layout, vocab, policy.depth, support),
    )


class Exchange:
    """A verifier that asked for one proposal, and the bytes a drafter answered with."""

    def __init__(self, vocab: int, policy: ProposalPolicy) -> None:
        self._policy = policy
        now = time.monotonic()
        self._link = Link(hello_of(Role.VERIFIER, vocab, policy), now)
        drafter = Link(hello_of(Role.DRAFTER, vocab, policy), now)
        self._link.start()
        for sender, receiver in ((self._link, drafter), (drafter, self._link)):
            for part in sender.outgoing():
                for _ in receiver.feed(part, now):
                    continue
        assert self._link.agreed is not None
        self._agreed: Agreed = self._link.agreed
        answering = DrafterSession(1, self._agreed)
        task = answering.apply(self._asked(audit=True)[1])
        assert isinstance(task, DraftTask)
        self._data = b"".join(bytes(part) for part in answering.reply(task, _draft(task, vocab)))

    def reply_bytes(self) -> bytes:
        """Return the frames of REPLY and COMPLETE."""
        return self._data

    def take(self) -> float:
        """Return the seconds from the first byte to a proposal that may be consumed."""
        return self._take(audit=True)

    def take_without_audit(self) -> float:
        """Return the same without recomputing the draws."""
        return self._take(audit=False)

    def _asked(self, *, audit: bool) -> tuple[VerifierSession, Step]:
        asking = VerifierSession(1, 0, PROMPT, KEY, self._agreed, audit=audit)
        return asking, asking.ask(self._policy, now=0.0, deadline=1.0)

    def _take(self, *, audit: bool) -> float:
        asking, _ = self._asked(audit=audit)
        taken: object = None
        began = time.perf_counter()
        for event in self._link.feed(self._data, 0.0):
            assert isinstance(event, Received)
            taken = asking.take(event, 0.0)
        seconds = time.perf_counter() - began
        assert isinstance(taken, Proposal), taken
        return seconds


def _draft(task: DraftTask, vocab: int) -> Draft:
    """Return a proposal drawn from random rows as a drafter draws it."""
    generator = np.random.default_rng(vocab)
    words = ProposalWords(task.proposal_key)
    drafted = Draft()
    for index in range(task.policy.depth):
        logits = generator.normal(0.0, 3.0, vocab).astype(np.float32)
        row = cpu.quantise(logits, task.policy)
        position = task.first_position + index
        address = Address(task.generation, task.round, position, Domain.PROPOSAL)
        drafted.tokens.append(cpu.draw(row, next(iter(words.words(address)))))
        drafted.rows.append(row)
    return drafted


def policies(depth: int, support: int) -> list[ProposalPolicy]:
    """Return the dense and the sparse policy of a depth."""
    dense = ProposalPolicy(layout=Layout.DENSE, depth=depth, temperature=1.0)
    return [dense, replace(dense, layout=Layout.SPARSE, support=support)]
