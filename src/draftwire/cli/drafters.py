"""Where a command's drafts come from: a drafter at an address, or one in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwire.cli.models import Target
from draftwire.cli.output import Notes
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.identity import require_pair
from draftwire.engines.registry import (
    ServedVocabulary,
    compare_tokenizers,
    load_drafter,
    read_tokenizer,
)
from draftwire.errors import (
    ConfigurationError,
    PairMismatchError,
    ProtocolError,
    ProtocolErrorCode,
    TransportError,
)
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.verifier.advice import security_advice
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.agreement import Agreed
from draftwire.wire.hello import ANY_IDENTITY
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet, WireVersion

PAIR_FIELDS = ("vocab_size", "tokenizer_hash", "id_map_hash")
_SHARED = "--vocabulary shared --target-tokenizer FOLDER"
OTHER_VOCABULARY = {
    "vocab_size": f"this target's --vocab-size where the tokenizers are equal, or {_SHARED}",
    "tokenizer_hash": _SHARED,
    "id_map_hash": _SHARED,
}
IDENTITY_FIELDS = {
    "draft_identity": "has another checkpoint than --draft-identity names: serve that one, or see"
    " with `draftwire doctor`, without the option, which it is",
    "target_identity": "drafts for another target than this one: start it with this target's"
    " --target-identity, or without",
}


def remote_drafter(
    address: Address,
    target: Target,
    policy: ProposalPolicy,
    notes: Notes,
    *,
    version: WireVersion = WireVersion.V2,
    draft_identity: bytes = ANY_IDENTITY,
    deadline: float | None,
    audit: bool = True,
    security: Security | None = None,
    breaker: Breaker | None = None,
    early_stop: bool = False,
    **states: Any,
) -> RemoteDrafter:
    """Return the client of a drafter, connected if it is there, and told apart from a wrong one.

    draft_identity: of the one checkpoint that is taken. deadline: seconds a round, None = derived.
    early_stop: let it admit fewer drafts than the policy's depth. states: how hidden states travel,
    fields of VerifierConfig.
    A drafter that is away is said in ``notes`` and tried again by the rounds. Raises
    PairMismatchError, ConfigurationError (limits that cannot carry the policy) and ProtocolError
    (another program, another version).
    """
    drafter = RemoteDrafter(
        address,
        target.engine,
        version=version,
        draft_identity=draft_identity,
        deadline=deadline,
        audit=audit,
        max_depth=policy.depth,
        max_support=max(1, policy.support),
        security=security,
        breaker=breaker,
        early_stop=early_stop,
        **states,
    )
    try:
        agreed = drafter.connect()
        require_limits(agreed, policy)
        if early_stop and not agreed.stops_early:
            raise ConfigurationError(
                "the drafter stops no proposal early: give --depth a number, or start a newer one"
            )
    except TransportError as error:
        notes.away(error)
    except ProtocolError as error:
        drafter.close()
        raise explained(error, address) from error
    except BaseException:
        drafter.close()
        raise
    return drafter


def require_limits(agreed: Agreed, policy: ProposalPolicy) -> None:
    """Raise ConfigurationError, with what to change on which side, for a policy over the limits."""
    if LayoutSet(1 << policy.layout) not in agreed.layouts:
        name = policy.layout.name.lower()
        raise ConfigurationError(
            f"the drafter does not offer the {name} layout: choose another --layout, or start it"
            f" with --layouts {name}"
        )
    if policy.depth > agreed.max_depth:
        raise ConfigurationError(
            f"--depth {policy.depth} is more than the drafter takes: use --depth"
            f" {agreed.max_depth}, or start it with --max-depth {policy.depth}"
        )
    if policy.layout is Layout.SPARSE and policy.support > agreed.max_support:
        raise ConfigurationError(
            f"--layout sparse:{policy.support} is more than the drafter takes: use sparse:"
            f"{agreed.max_support}, or start it with --max-support {policy.support}"
        )


def explained(error: ProtocolError, address: Address) -> Exception:
    """Return what a failed handshake means to the user."""
    if error.field in IDENTITY_FIELDS:
        return PairMismatchError(
            error.field, f"the drafter at {address} {IDENTITY_FIELDS[error.field]} ({error})"
        )
    if error.field in PAIR_FIELDS:
        return PairMismatchError(
            error.field,
            f"the drafter at {address} is no partner of this target ({error.field} differs): both"
            " need one tokenizer; choose another --target or --drafter, or start it with"
            f" {OTHER_VOCABULARY[error.field]} (draftwire doctor --drafter-tokenizer FOLDER shows"
            " what differs)",
        )
    unproved = security_advice(error, address)
    if unproved is not None:
        return ProtocolError(error.code, unproved, field=error.field)
    if error.code in (ProtocolErrorCode.BAD_MAGIC, ProtocolErrorCode.BAD_HEADER_CHECKSUM):
        return ProtocolError(
            error.code, f"what listens at {address} is another program, not a drafter: {error}"
        )
    if error.code in (
        ProtocolErrorCode.BAD_VERSION,
        ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT,
    ):
        return ProtocolError(
            error.code,
            f"the drafter at {address} speaks another wire version ({error}): give both sides the"
            " same --wire",
            field=error.field,
        )
    return ProtocolError(
        error.code, f"the drafter at {address} cannot be used: {error}", field=error.field
    )


def local_drafter(
    folder: Path | None,
    target: Target,
    policy: ProposalPolicy,
    kernels: str = "auto",
    *,
    shared: bool = False,
    early_stop: bool = False,
) -> LocalDrafter:
    """Return a drafter in this process, for comparison; ConfigurationError as for any model.

    shared: let it draft on the ids that it shares with the target. Raises PairMismatchError with
    the first differences of the tokenizers otherwise.
    """
    tokenizer = target.tokenizer if shared else None
    serve_as = ServedVocabulary(tokenizer, target.engine.vocab_size)
    engine = load_drafter(folder, device="cpu", serve_as=serve_as)
    try:
        require_pair(target.engine, engine)
    except PairMismatchError as error:
        ours = (target.tokenizer, target.engine.vocab_size)
        theirs = read_tokenizer(folder, role="drafter")
        raise PairMismatchError(
            error.field, f"{error}: {compare_tokenizers(ours, theirs)}"
        ) from error
    config = DrafterConfig(
        layouts=LayoutSet(1 << policy.layout),
        max_depth=policy.depth,
        max_support=max(1, policy.support),
        kernels=kernels,
    )
    return LocalDrafter(
        DrafterProgram(engine, config),
        target.engine,
        max_depth=policy.depth,
        max_support=max(1, policy.support),
        early_stop=early_stop,
    )
