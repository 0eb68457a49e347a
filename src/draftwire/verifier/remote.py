"""A drafter on another machine, over TCP."""

from __future__ import annotations

from collections.abc import Callable

from draftwire.session.slot_buffers import SlotPlan
from draftwire.transport.channel import Channel
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, TcpChannel
from draftwire.transport.tls import Tls, TlsFiles
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.registry import Adaptation, WireVersion


class RemoteDrafter(DraftClient):
    """The drafter that listens at an address; see :class:`DraftClient`.

    address: an ``Address``, a (host, port) pair or "HOST:PORT". target: whose tokenizer and
    vocabulary the drafter's must equal. deadline, connect_timeout: seconds; without a deadline each
    round's is derived from the rounds before. draft_identity: the one checkpoint that is taken, all
    zero = any. shard_count: of how many shards each reply is one (P29). security: the key or the
    certificates that the drafter was started with. breaker: pauses drafting that does not pay. With
    a breaker, or without a deadline, a seed no longer surely repeats its text, since times decide.
    slots: memory for replies; None = as HELLO agrees. Rounds connect, and connect again, by
    themselves; ``connect`` does it at once and says what is wrong.
    """

    def __init__(
        self,
        address: Address | tuple[str, int] | str,
        target: ModelIdentity,
        *,
        version: WireVersion = WireVersion.V2,
        deadline: float | None = None,
        connect_timeout: float = 1.0,
        audit: bool = True,
        max_sessions: int = 64,
        max_depth: int = 16,
        max_support: int = 1024,
        draft_identity: bytes = bytes(32),
        adaptation: Adaptation = Adaptation.ANY,
        shard_count: int = 1,
        security: Security | None = None,
        breaker: Breaker | None = None,
        slots: SlotPlan | None = None,
    ) -> None:
        """Remember the address; nothing is sent yet. Raises ConfigurationError."""
        self.address = Address.parse(address) if isinstance(address, str) else Address(*address)
        super().__init__(
            self.dialler(security),
            verifier_hello(
                target,
                version=version,
                max_sessions=max_sessions,
                max_depth=max_depth,
                max_support=max_support,
                draft_identity=draft_identity,
                adaptation=adaptation,
                shard_count=shard_count,
            ),
            deadline=deadline,
            connect_timeout=connect_timeout,
            audit=audit,
            key=security.secret if isinstance(security, PresharedKey) else b"",
            breaker=breaker,
            slots=slots,
            name=str(self.address),
        )

    def dialler(self, security: Security | None) -> Callable[[float], Channel]:
        """Return what opens a channel to the address; certificates are read now, once."""
        if not isinstance(security, TlsFiles):
            return lambda until: TcpChannel.connect(self.address, until)
        tls = Tls(security, server=False)
        return lambda until: tls.connect(self.address, until)
