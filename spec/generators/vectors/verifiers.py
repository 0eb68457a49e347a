"""Vectors of whole conversations with a verifier: what it does and what it makes of bytes (P13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spec.generators.vectors import peers
from spec.generators.vectors.drafters import ALONE, ENDED, OUTCOMES, PROMPT, UNKNOWN_PREFIX
from spec.generators.vectors.form import Vector, binary32, sparse
from spec.generators.vectors.frames import DENSE, frame
from spec.generators.vectors.peers import (
    DRAFTER_HELLO,
    TARGET,
    VERIFIER_HELLO,
    answer_of,
    committed_by,
    complete_frame,
    error_frame,
    proposal_of,
    reply_payload,
    step_frame,
    step_of,
    verdict_of,
)
from spec.oracle.frames import write_fields

Fields = dict[str, Any]
Maker = Callable[[Fields], bytes]


class Verifier:
    """Writes down a conversation, action by action, as the rules say it must go."""

    def __init__(self) -> None:
        self.prefix = list(PROMPT)
        self.generation = 1
        self.round = 0
        self.base = 0
        self.held = 0  # tokens that a whole proposal has shown the drafter to hold
        self.rider = (0, 0, 0)
        self.step: Fields = {}
        own, peer = VERIFIER_HELLO, DRAFTER_HELLO
        out, given = peers.hello_frame(own), peers.answer_frame(own, peer)
        self.actions: list[Fields] = [{"do": "connect", "out": out.hex(), "in": given.hex()}]

    def vector(self, note: str) -> Vector:
        """The whole conversation."""
        return {
            "op": "verifier",
            "note": note,
            "hello": write_fields("HELLO", VERIFIER_HELLO).hex(),
            "session": 7,
            "slot": 0,
            "prompt": PROMPT,
            "seed": f"{1:032x}",
            "stream": f"{0:016x}",
            "target": TARGET,
            "actions": self.actions,
        }

    def ask(self, **policy: Any) -> Verifier:
        """Begin the next round."""
        self.round += 1
        self.step = step_of(
            self.prefix,
            generation=self.generation,
            round_=self.round,
            base=self.base,
            rider=self.rider,
            **policy,
        )
        names = ("layout", "depth", "support", "top_k", "top_p", "min_p")
        shown = {name: self.step[name] for name in names}
        shown["temperature"] = binary32([self.step["temperature"]])
        self.actions.append({"do": "ask", "policy": shown, "out": step_frame(self.step).hex()})
        return self

    def retry(self) -> Verifier:
        """The same bytes once more."""
        self.actions.append({"do": "retry", "out": step_frame(self.step).hex()})
        return self

    def receive(self, data: bytes, **result: Any) -> Verifier:
        """Bytes come in: the result is a proposal, why the round lost it, or nothing."""
        self.actions.append({"do": "receive", "in": data.hex(), **result})
        return self

    def proposal(self, data: bytes | None = None) -> Verifier:
        """The whole reply comes in."""
        drafted = proposal_of(self.step)
        shown = {
            "tokens": [token for token, _ in drafted],
            "q": [sparse(row) for _, row in drafted],
        }
        return self.receive(answer_of(self.step) if data is None else data, proposal=shown)

    def verify(self) -> Verifier:
        """Judge the proposal by the target's table and the request's words, and commit."""
        verdict = verdict_of(self.step)
        self.actions.append(
            {
                "do": "verify",
                "accepted": verdict.accepted,
                "token": verdict.token,
                "outcome": verdict.outcome,
            }
        )
        self.held = len(self.prefix)
        self.committed(verdict.accepted, OUTCOMES[verdict.outcome], verdict.token)
        self.base = self.held + verdict.accepted
        return self

    def committed(self, accepted: int, outcome: int, token: int | None) -> None:
        """Note what a round has committed."""
        self.prefix = committed_by(self.step, accepted, token)
        self.rider = (self.round, accepted, outcome)

    def alone(self, opens: bool = False) -> Verifier:
        """A target-only round in the place of the proposal; ``opens``: nothing is held there."""
        token = peers.lone_token(self.step)
        self.actions.append({"do": "alone", "token": token})
        self.committed(0, ALONE, token)
        self.base = self.held  # nobody knows whether the rider of the lost round arrived
        if opens:
            self.lost()
        return self

    def lost(self) -> Verifier:
        """What the drafter holds is unknown: the next round opens a generation."""
        self.generation, self.round, self.base, self.rider = self.generation + 1, 0, 0, (0, 0, 0)
        return self

    def reset(self) -> Verifier:
        """The generation ends, and the next round opens a larger one."""
        out = peers.reset_frame(generation=self.generation, following=self.generation + 1)
        self.actions.append({"do": "reset", "out": out.hex()})
        return self.lost()

    def skip(self) -> Verifier:
        """A round that is not asked for."""
        self.round += 1
        self.step = step_of(self.prefix, generation=self.generation, round_=self.round)
        self.actions.append({"do": "skip"})
        return self

    def give_up(self) -> Verifier:
        """The deadline has passed."""
        self.actions.append({"do": "give_up"})
        return self

    def dropped(self, data: bytes) -> Verifier:
        """Bytes that cost the round its proposal."""
        return self.receive(data, dropped=True)

    def ended(self, accepted: int) -> Verifier:
        """The text ends inside the accepted drafts."""
        self.actions.append({"do": "end", "accepted": accepted})
        self.committed(accepted, ENDED, None)
        return self

    def finish(self, out: bytes) -> Verifier:
        """The end of the session."""
        self.actions.append({"do": "finish", "out": out.hex()})
        return self


def rounds() -> Iterator[Vector]:
    """Rounds that go well, and how a session ends."""
    one = Verifier().ask().proposal().verify().ask().proposal().verify().ask().proposal()
    step, verdict = one.step, verdict_of(one.step)
    last = peers.commit_frame(step, verdict.accepted, OUTCOMES[verdict.outcome], verdict.token)
    yield one.verify().finish(last + peers.cancel_frame()).vector("three rounds and the end")
    dense = Verifier().ask(layout=DENSE).proposal().verify().ask(layout=DENSE, depth=4).proposal()
    yield dense.verify().vector("dense, another depth")
    greedy = Verifier().ask(temperature=0.0, depth=2).proposal().verify().ask(depth=1).proposal()
    yield greedy.verify().vector("greedy drafts, then one")
    one = Verifier().ask().proposal()
    last = peers.commit_frame(one.step, 2, ENDED, None) + peers.cancel_frame()
    yield one.ended(2).finish(last).vector("L31: the text ends inside the proposal")
    one = Verifier().ask().proposal().verify().skip().alone().ask().proposal().verify()
    yield one.vector("a round that is not asked for")


def losses() -> Iterator[Vector]:
    """Replies that are late, lost, repeated: the round goes on alone and drafting resumes."""
    one = Verifier().ask().proposal().verify().ask().give_up().alone()
    late = answer_of(one.step)
    one.ask().receive(late).proposal().verify()
    yield one.vector("X41: a late reply is dropped, the next is used")
    one = Verifier().ask().give_up().alone(opens=True).ask().proposal().verify()
    yield one.vector("the first reply is lost: a new generation")
    one = Verifier().ask().proposal().verify().reset().ask().proposal().verify()
    yield one.ask().proposal().verify().vector("RESET between two rounds")
    one = Verifier().ask()
    late = answer_of(one.step)
    one.reset().ask().receive(late).proposal().verify()
    yield one.vector("RESET of a round in flight: its reply is of no use any more")
    one = Verifier().ask().proposal().reset().ask().proposal().verify()
    yield one.vector("RESET of a proposal that is not judged: nothing of it is committed")
    one = Verifier().ask().retry().proposal()
    yield one.receive(answer_of(one.step)).verify().vector("a retry that is answered twice")
    one = Verifier().ask()
    reply = frame("REPLY", reply_payload(one.step, proposal_of(one.step)))
    whole = answer_of(one.step)
    one.receive(reply).receive(reply).proposal(whole[len(reply) :])
    yield one.verify().vector("a REPLY twice before its COMPLETE")
    one = Verifier().ask().proposal().verify().ask()
    one.dropped(error_frame(UNKNOWN_PREFIX, one.step)).alone(opens=True)
    yield one.ask().proposal().verify().vector("the drafter has lost its state")
    for status in range(1, 6):
        one = Verifier().ask().proposal().verify().ask()
        one.dropped(complete_frame(one.step, status=status)).alone()
        yield one.vector(f"declined with status {status}")


def violations() -> Iterator[Vector]:
    """P13: what does not agree with the STEP costs the whole proposal, and nothing else."""

    def lost(note: str, data: Maker) -> Vector:
        one = Verifier().ask().proposal().verify().ask()
        one.dropped(data(one.step)).alone().ask().proposal().verify()
        return one.vector(note)

    def reply(**changes: Any) -> Maker:
        return lambda step: frame("REPLY", reply_payload(step, proposal_of(step), **changes))

    def complete(**changes: Any) -> Maker:
        def whole(step: Fields) -> bytes:
            payload = reply_payload(step, proposal_of(step))
            return frame("REPLY", payload) + complete_frame(step, payload, **changes)

        return whole

    wrong: Fields = {
        "slot": 1,
        "generation": 2,
        "round": 3,
        "first_position": 1,
        "prefix_digest": bytes(16),
        "context_version": 1,
    }
    for field, value in wrong.items():
        yield lost(f"REPLY.{field}", reply(**{field: value}))
        yield lost(f"COMPLETE.{field}", complete(**{field: value}))
    yield lost("COMPLETE.reply_bytes", complete(reply_bytes=255))
    yield lost("COMPLETE.reply_checksum", complete(reply_checksum=0))
    yield lost("COMPLETE without its REPLY", lambda step: answer_of(step)[-complete_bytes(step) :])

    def shallow(step: Fields) -> bytes:
        return frame("REPLY", reply_payload(step, proposal_of(step)[:2]))

    yield lost("a proposal of another depth", shallow)

    def other_layout(step: Fields) -> bytes:
        dense = {**step, "layout": DENSE}
        return frame("REPLY", reply_payload(dense, proposal_of(step)))

    yield lost("another layout", other_layout)

    def one_other_token(step: Fields) -> bytes:
        (token, counts), *rest = proposal_of(step)
        other = next(v for v, count in enumerate(counts) if count and v != token)
        payload = reply_payload(step, [(other, counts), *rest])
        return frame("REPLY", payload) + complete_frame(step, payload)

    def redrawn(step: Fields) -> bytes:
        another = {**step, "proposal_key": step["proposal_key"] ^ 1}
        payload = reply_payload(step, proposal_of(another))
        return frame("REPLY", payload) + complete_frame(step, payload)

    yield lost("the audit: another token than the one drawn", one_other_token)
    yield lost("the audit: drawn with other words", redrawn)
    yield lost("a q of the wrong mass", wrong_mass)


def wrong_mass(step: Fields) -> bytes:
    """A reply in which one row lacks a ticket."""
    (token, counts), *rest = proposal_of(step)
    short = [count - (v == token) for v, count in enumerate(counts)]
    payload = reply_payload(step, [(token, short), *rest])
    return frame("REPLY", payload) + complete_frame(step, payload)


def complete_bytes(step: Fields) -> int:
    """Bytes of the frame of a COMPLETE."""
    return len(complete_frame(step, status=1))


def vectors() -> Iterator[Vector]:
    """All conversations with a verifier."""
    for part in (rounds, losses, violations):
        yield from part()
