"""Options that say what one verifier may cost a drafter, and how long it may be silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from draftwire.bounds import MOST_SECONDS
from draftwire.cli.options import COUNT, Number
from draftwire.drafter.limits import PeerLimits
from draftwire.errors import ConfigurationError

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS: Final = PeerLimits()
_MIB: Final = 1 << 20

LIMITS: Final[dict[str, tuple[click.ParamType[Any], str]]] = {
    "lease_seconds": (
        Number(1, MOST_SECONDS),
        "Silence after which a verifier loses connection and sessions.",
    ),
    "yield_seconds": (
        Number(0, MOST_SECONDS, above=True),
        "Time without a proposal after which it may be evicted.",
    ),
    "handshake_seconds": (
        Number(0, MOST_SECONDS, above=True),
        "Time to agree on HELLO, TLS and key included.",
    ),
    "max_half_open": (COUNT, "Connections that have not agreed; the oldest is evicted."),
    "frames_per_second": (Number(1), "Frames read of one verifier; more waits."),
    "mib_per_second": (Number(0, above=True), "MiB read of one verifier; more waits."),
    "refusals_per_second": (Number(0, above=True), "Refused messages; far more end it."),
    "refusals_at_once": (COUNT, "Refused messages that may come in a row."),
    "prefill_chunk_tokens": (
        COUNT,
        "Tokens of a prefix fed at once, others in between.",
    ),
    "max_positions": (
        click.IntRange(0, (1 << 31) - 1),
        "Drafts of one verifier in the queue; 0: sessions x depth.",
    ),
}
"""Each option: its type and meaning; the names are those of PeerLimits, but for MiB."""


_FOLLOWS: Final = {"yield_seconds": "10, or the lease if that is shorter"}


_OLDER_NAMES: Final = {"prefill_chunk_tokens": "--feed-tokens"}


class _Renamed(click.Option):
    """An option that goes by an older name as well, of which its help says nothing."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the name and the help."""
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def limit_options(command: Command) -> Command:
    """Add the options to a command."""
    for name, (kind, meaning) in reversed(LIMITS.items()):
        command = click.option(
            "--" + name.replace("_", "-"),
            *([_OLDER_NAMES[name]] if name in _OLDER_NAMES else []),
            name,
            cls=_Renamed,
            type=kind,
            default=_default(name),
            show_default=_FOLLOWS.get(name, True),
            help=meaning,
        )(command)
    return command


def take_limits(values: dict[str, Any]) -> PeerLimits:
    """Take the options out of ``values``; click.UsageError for limits that cannot hold together."""
    taken = {name: values.pop(name) for name in LIMITS}
    taken["bytes_per_second"] = taken.pop("mib_per_second") * _MIB
    if 0 < taken["max_positions"] < values["max_depth"]:
        raise click.UsageError(
            f"--max-positions {taken['max_positions']} never lets a proposal of --max-depth"
            f" {values['max_depth']} through: raise the one, or lower the other"
        )
    lease, silence = taken["lease_seconds"], taken["yield_seconds"]
    if silence is not None and silence > lease:
        raise click.UsageError(
            f"--yield-seconds {silence:g} must not exceed --lease-seconds {lease:g}: after that a"
            " connection has ended"
        )
    try:
        return PeerLimits(**taken)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _default(name: str) -> float | None:
    if name == "mib_per_second":
        return _DEFAULTS.bytes_per_second / _MIB
    value: float | None = getattr(_DEFAULTS, name)
    return value
