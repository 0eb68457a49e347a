"""Option types that several commands share, each refusing with what to write instead."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from draftwire.errors import ConfigurationError
from draftwire.kernels.registry import CHOICES
from draftwire.transport.tcp import Address
from draftwire.wire.identity import IDENTITY_BYTES, parse_identity
from draftwire.wire.registry import (
    MAX_DEPTH,
    MAX_VOCABULARY,
    V2_LAYOUTS,
    WITH_SUPPORT,
    Layout,
    LayoutSet,
    WireVersion,
)

DEFAULT_PORT = 7711
DEFAULT_DEPTH = 5
MOST_AUTO_DEPTH = 8  # what a drafter takes unless it is told otherwise
DEFAULT_SUPPORT = 32
LARGEST_SEED = (1 << 128) - 1
MAX_THREADS = 1024  # torch reserves memory for each

Command = TypeVar("Command", bound=Callable[..., Any])


_LAYOUTS: Final = {
    layout.name.lower(): layout for layout in Layout if LayoutSet(1 << layout) in V2_LAYOUTS
}
"""Layouts that carry q, by the name on the command line."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A layout, and K of its support (sparse; 0 for the others)."""

    layout: Layout
    support: int

    def __str__(self) -> str:
        """Return it as the option is written."""
        name = self.layout.name.lower()
        return f"{name}:{self.support}" if self.layout in WITH_SUPPORT else name


@dataclass(frozen=True, slots=True)
class DepthChoice:
    """K, tokens of a proposal; auto: the drafter may stop before them, draft by draft."""

    most: int
    auto: bool = False

    def __str__(self) -> str:
        """Return it as the option is written."""
        return "auto" if self.auto else str(self.most)


class DepthType(click.ParamType[DepthChoice]):
    """``auto`` or a number of tokens."""

    name = "auto|K"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DepthChoice:
        """Read the depth."""
        if isinstance(value, DepthChoice):
            return value
        if value == "auto":
            return DepthChoice(MOST_AUTO_DEPTH, auto=True)
        return DepthChoice(DEPTH.convert(value, param, ctx))


class AddressType(click.ParamType[Address]):
    """HOST:PORT, an IPv6 host in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        """Split and check the address."""
        if isinstance(value, Address):
            return value
        try:
            address = Address.parse(str(value))
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)
        if not address.port:
            self.fail("port 0 is for serve alone: name the one that it printed", param, ctx)
        return address


class LayoutType(click.ParamType[LayoutChoice]):
    """``dense`` or ``sparse:K``."""

    name = "dense|sparse:K"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> LayoutChoice:
        """Read the layout and its support."""
        if isinstance(value, LayoutChoice):
            return value
        name, colon, support = str(value).partition(":")
        layout = _LAYOUTS.get(name)
        if layout is not None and layout not in WITH_SUPPORT and not colon:
            return LayoutChoice(layout, 0)
        if layout not in WITH_SUPPORT or not (support.isascii() and support.isdigit()):
            self.fail(f"'{value}' is neither dense nor sparse:K, for example sparse:32", param, ctx)
        if not 1 <= int(support) <= MAX_VOCABULARY:
            self.fail(
                f"a sparse row needs at least 1 and at most {MAX_VOCABULARY} ids: sparse:32",
                param,
                ctx,
            )
        return LayoutChoice(layout, int(support))


class LayoutSetType(click.ParamType[LayoutSet]):
    """``dense``, ``sparse`` or ``dense,sparse``."""

    name = "dense,sparse"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> LayoutSet:
        """Read a set of layouts separated by commas."""
        if isinstance(value, LayoutSet):
            return value
        layouts = LayoutSet(0)
        for name in str(value).split(","):
            if name not in _LAYOUTS:
                self.fail(f"'{name}' is no layout: write dense, sparse or dense,sparse", param, ctx)
            layouts |= LayoutSet(1 << _LAYOUTS[name])
        return layouts


class WireType(click.ParamType[WireVersion]):
    """``v1`` or ``v2``."""

    name = "v1|v2"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> WireVersion:
        """Read a wire version."""
        if isinstance(value, WireVersion):
            return value
        versions = {"v1": WireVersion.V1, "v2": WireVersion.V2}
        if value not in versions:
            self.fail(
                f"'{value}' is no wire version: write v2, or v1 for the greedy wire", param, ctx
            )
        return versions[value]


class Number(click.ParamType[float]):
    """A finite number inside bounds; ``above`` leaves the lower bound itself out."""

    name = "NUMBER"

    def __init__(self, low: float, high: float = math.inf, *, above: bool = False) -> None:
        self.low, self.high, self.above = low, high, above

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number and hold it against the bounds."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"'{value}' is not a number", param, ctx)
        below = number <= self.low if self.above else number < self.low
        if not math.isfinite(number) or below or number > self.high:
            bound = f"{'above' if self.above else 'at least'} {self.low:g}"
            bound += f" and at most {self.high:g}" if math.isfinite(self.high) else ""
            self.fail(f"{value} is not a finite number {bound}", param, ctx)
        return number


class Seed(click.ParamType[int]):
    """A whole number below 2^128, whose bound is written as that and not in its 39 digits."""

    name = "0..2^128-1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a seed and hold it against the bounds."""
        try:
            seed = int(value)
        except ValueError:
            seed = -1
        if not 0 <= seed <= LARGEST_SEED:
            self.fail(f"'{value}' is no whole number from 0 to 2^128 - 1", param, ctx)
        return seed


class Text(click.ParamType[str]):
    """Text that a tokenizer and a peer can be given: what was typed had to be UTF-8."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what the system could not decode and has passed on as lone surrogates."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail("what was given is not UTF-8 text", param, ctx)
        return str(value)


class IdentityType(click.ParamType[bytes]):
    """The SHA-256 of a checkpoint, as ``serve`` and ``doctor`` print it."""

    name = "HEX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Read 64 hexadecimal digits."""
        if isinstance(value, bytes):
            return value
        try:
            return parse_identity(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class HostType(click.ParamType[str]):
    """An address or a name of this machine to listen on; an empty one would mean every address."""

    name = "HOST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what names nothing."""
        if not str(value).strip():
            self.fail("an empty host names no address: write one, such as 127.0.0.1", param, ctx)
        return str(value)


DEPTH = click.IntRange(1, MAX_DEPTH)
POSITIVE = click.IntRange(min=1)
COUNT = click.IntRange(1, (1 << 31) - 1)


class DrafterFolder(click.Path):
    """A drafter's folder, or ``dspark``: the block drafter that ships with the package."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Let the name stand for the folder, unless there is one of that name."""
        path = Path(str(super().convert(value, param, ctx)))
        if str(path) != "dspark" or path.exists():
            return path
        return Path(str(importlib.resources.files("draftwire"))) / "models" / "dspark"


def drafter_folder(name: str, help: str) -> Callable[[Command], Command]:
    """Return an option that takes a drafter's folder."""
    return click.option(
        name, type=DrafterFolder(path_type=Path), metavar="FOLDER|dspark", help=help
    )


def model_folder(name: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return an option that takes the folder of a transformers model."""
    return click.option(
        name, type=click.Path(path_type=Path, file_okay=True), metavar="FOLDER", **attributes
    )


def depth_option() -> Callable[[Command], Command]:
    """Return the option of a command that asks for proposals."""
    return click.option(
        "--depth",
        type=DepthType(),
        metavar="auto|K",
        default=str(DEFAULT_DEPTH),
        show_default=True,
        help=f"Tokens of a proposal; auto: up to {MOST_AUTO_DEPTH}, as many as pay.",
    )


def layout_option(help: str = "How q travels.") -> Callable[[Command], Command]:
    """Return the option of a command that asks for proposals."""
    return click.option(
        "--layout",
        type=LayoutType(),
        metavar="dense|sparse:K",
        default=f"sparse:{DEFAULT_SUPPORT}",
        show_default=True,
        help=help,
    )


def identity_option(name: str, whose: str) -> Callable[[Command], Command]:
    """Return the option that names the one checkpoint which the other side may have."""
    return click.option(
        name,
        type=IdentityType(),
        default=bytes(IDENTITY_BYTES),
        show_default="any",
        help=f"SHA-256 of the one checkpoint that {whose} may have.",
    )


def kernels_option(what: str) -> Callable[[Command], Command]:
    """Return the option of a command that computes with kernels. what: they do."""
    return click.option(
        "--kernels",
        type=click.Choice(CHOICES),
        default="auto",
        show_default=True,
        help=f"What {what}; auto: what belongs to the device of the model.",
    )


def utf8(raw: bytes, source: str) -> str:
    """Return the text of bytes, to the letter; click.UsageError names the source if it is none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8 text") from error


def given(ctx: click.Context, name: str) -> bool:
    """Whether the user wrote this option, rather than leaving its default."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def flag(name: str) -> str:
    """Return an option's name as it is written: ``top_p`` is ``--top-p``."""
    return "--" + name.replace("_", "-")
