"""A drafter on another machine, over TCP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from draftwire.transport.channel import Channel
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, TcpChannel
from draftwire.transport.tls import Tls, TlsFiles
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.config import VerifierConfig, configured
from draftwire.verifier.states import TargetStates
from draftwire.wire.identity import ModelIdentity


class RemoteDrafter(DraftClient):
    """The drafter that listens at an address; see :class:`DraftClient`.

    address: an ``Address``, a (host, port) pair or "HOST:PORT". target: whose tokenizer and
    vocabulary the drafter's must equal. config, options: see :class:`VerifierConfig`, whose fields
    are the options; without a deadline each round's is derived from the rounds before. security:
    the key or the certificates that the drafter was started with. breaker: pauses drafting that
    does not pay. target_states: what the target has of hidden states, where it does not say so
    itself. With a breaker, or without a deadline, a seed no longer surely repeats its text,
    since times decide. Rounds connect, and connect again, by themselves; ``connect`` does it at
    once and says what is wrong. Raises ConfigurationError; nothing is sent yet.
    """

    def __init__(
        self,
        address: Address | tuple[str, int] | str,
        target: ModelIdentity,
        config: VerifierConfig | None = None,
        *,
        security: Security | None = None,
        breaker: Breaker | None = None,
        target_states: TargetStates | None = None,
        **options: Any,
    ) -> None:
        self.address = Address.parse(address) if isinstance(address, str) else Address(*address)
        config = configured(config, **options)
        if isinstance(security, PresharedKey):
            config = replace(config, key=security.secret)
        super().__init__(
            _opener(self.address, security),
            config.hello(target, target_states),
            config,
            target_states=target_states or TargetStates.of(target),
            breaker=breaker,
            name=str(self.address),
        )


def _opener(address: Address, security: Security | None) -> Callable[[float], Channel]:
    """Return what opens a channel to the address; certificates are read now, once."""
    if not isinstance(security, TlsFiles):
        return lambda until: TcpChannel.connect(address, until)
    tls = Tls(security, server=False)
    return lambda until: tls.connect(address, until)
