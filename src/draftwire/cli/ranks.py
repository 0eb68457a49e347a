"""Options of a model that runs over several ranks, on this machine or one a machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from draftwire.bounds import MOST_SECONDS
from draftwire.cli.models import prepare_torch
from draftwire.cli.options import AddressType, Number, flag
from draftwire.cli.progress import working
from draftwire.errors import ExitCode, TransportError
from draftwire.transport.tcp import Address, free_address
from draftwire.wire.registry import WireVersion

if TYPE_CHECKING:
    from draftwire.engines.parallel.columns import ModelColumns
    from draftwire.engines.parallel.group import TorchGroup

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_RANKS: Final = 64
STOP_SECONDS: Final = 10.0
_NAMES: Final = ("ranks", "rank", "rendezvous", "rank_patience")


@dataclass(frozen=True, slots=True)
class RankOptions:
    """size: ranks of the model. rank, rendezvous: this one's place; None = this command starts all.

    patience: seconds in which ranks have to meet, and after which one that hangs is given up.
    """

    size: int
    rank: int | None
    rendezvous: Address | None
    patience: float

    @property
    def leads(self) -> bool:
        """Whether this process leads the ranks."""
        return not self.rank


def rank_options(command: Command) -> Command:
    """Add the options to a command."""
    for option in (
        click.option(
            "--rank-patience",
            type=Number(1, MOST_SECONDS),
            default=600.0,
            show_default=True,
            help="Seconds to wait for a rank that hangs.",
        ),
        click.option("--rendezvous", type=AddressType(), help="Where rank 0 is met; with --rank."),
        click.option(
            "--rank",
            type=click.IntRange(0, MOST_RANKS - 1),
            help="Which of them this is, with --rendezvous.  [default: all, here]",
        ),
        click.option(
            "--ranks",
            type=click.IntRange(1, MOST_RANKS),
            default=1,
            show_default=True,
            help="Processes that share the model's vocabulary (docs/guides/ranks.md).",
        ),
    ):
        command = option(command)
    return command


def take_ranks(values: dict[str, Any], others: tuple[str, ...]) -> RankOptions | None:
    """Take the options out of ``values``; None for one process. Raises click.UsageError.

    others: options of the command that mean something over ranks alone.
    """
    size, rank, rendezvous, patience = (values.pop(name) for name in _NAMES)
    if size == 1:
        idle = [flag(name) for name in others if values[name]]
        place = {"rank": rank, "rendezvous": rendezvous}
        idle += [flag(name) for name, value in place.items() if value is not None]
        if idle:
            raise click.UsageError(f"{', '.join(idle)} is for a model over ranks: add --ranks N")
        return None
    if (rank is None) != (rendezvous is None):
        raise click.UsageError(
            "--rank and --rendezvous belong together: give both, on every machine, or neither, and"
            " all ranks start here"
        )
    if rank is not None and rank >= size:
        raise click.UsageError(f"--rank {rank} is none of {size}: they are 0 to {size - 1}")
    if values["wire"] is WireVersion.V1:
        raise click.UsageError("--ranks needs --wire v2: drop --wire v1, or --ranks")
    if values["device"] != "cpu":
        raise click.UsageError(
            f"--ranks runs on CPUs from the command line: drop --device {values['device']}, or"
            " write a program (docs/guides/ranks.md)"
        )
    if values["kernels"] != "auto" and values.get("ownership") != "requests":
        raise click.UsageError(
            "ranks that share a vocabulary compute on their shards: drop --kernels, or --ranks"
        )
    return RankOptions(size, rank, rendezvous, patience)


class Place:
    """This process among the ranks, and how the others fare that it has started."""

    def __init__(self, rank: int, rendezvous: str) -> None:
        """Not met yet."""
        self.rank = rank
        self.rendezvous = rendezvous
        self.met = False
        self.lost: int | None = None  # a rank that ended before this one did
        self._ending = False

    def watch(self, rank: int, process: subprocess.Popen[bytes], *, interrupt: bool) -> None:
        """Wait for a rank's end in a thread; one too early ends this process as well.

        interrupt: as Ctrl-C does, once the ranks have met; otherwise the next collective fails.
        """

        def wait() -> None:
            process.wait()
            if self._ending:
                return
            self.lost = rank
            if not self.met:  # torch waits for the ranks to meet and hears of nothing else
                click.echo(f"draftwire: rank {rank} has ended before it was met", err=True)
                os._exit(ExitCode.UNAVAILABLE)
            if interrupt:
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=wait, daemon=True).start()

    def leave(self) -> None:
        """From now on the others may end."""
        self._ending = True


@contextmanager
def all_ranks(options: RankOptions, *, interrupt: bool) -> Iterator[Place]:
    """Yield this process's place; start the other ranks where that is asked for.

    Those run this very command line, end with rank 0, and take no part in Ctrl-C. interrupt: see
    ``Place.watch``. Raises TransportError where one of them has ended before.
    """
    if options.rank is not None:
        yield Place(options.rank, str(options.rendezvous))
        return
    place = Place(0, str(free_address()))
    command = [sys.executable, "-m", "draftwire", *sys.argv[1:], "--rendezvous", place.rendezvous]
    others = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], stdin=subprocess.DEVNULL, start_new_session=True
        )
        for rank in range(1, options.size)
    ]
    for rank, process in enumerate(others, 1):
        place.watch(rank, process, interrupt=interrupt)
    try:
        yield place
    finally:
        place.leave()
        for each in others:
            try:
                each.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
    if place.lost is not None:
        raise TransportError(f"rank {place.lost} has ended, and the others with it")


@contextmanager
def joined_ranks(
    options: RankOptions, threads: int, folder: Path | None, role: str
) -> Iterator[tuple[TorchGroup, ModelColumns]]:
    """Load this rank's columns and meet the others."""
    with all_ranks(options, interrupt=role == "drafter") as place:
        with working(f"loading the {role}"):
            prepare_torch(threads)
            from draftwire.engines.hf import embedded_folder
            from draftwire.engines.parallel.columns import load_columns
            from draftwire.engines.parallel.group import join

            where = folder or embedded_folder(role)
            real_only = role == "drafter"
            columns = load_columns(where, place.rank, options.size, real_only=real_only)
        group = join(place.rank, options.size, place.rendezvous, patience=options.patience)
        place.met = True
        yield group, columns
