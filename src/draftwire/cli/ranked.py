"""What ``draftwire serve`` and ``draftwire generate`` do in one process of a model over ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwire.cli.models import Target, prepare_torch
from draftwire.cli.operations import serving_metrics
from draftwire.cli.process import READY
from draftwire.cli.progress import working
from draftwire.cli.ranks import RankOptions, all_ranks
from draftwire.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from draftwire.cli.generate import GenerateOptions
    from draftwire.cli.serve import ServeOptions
    from draftwire.drafter.program import DrafterConfig
    from draftwire.engines.parallel.columns import ModelColumns
    from draftwire.engines.parallel.group import TorchGroup
    from draftwire.transport.tcp import Address


@contextmanager
def _joined(
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


def serve_ranks(options: ServeOptions, config: DrafterConfig) -> None:
    """Serve over ranks: one answers for all, or each its own shard on its own port."""
    assert options.ranks is not None
    with _joined(options.ranks, options.threads, options.model, "drafter") as (group, columns):
        from draftwire.drafter.program import DrafterProgram
        from draftwire.drafter.server import DrafterServer, serve
        from draftwire.engines.parallel.drafter import (
            RankedContext,
            RankedDraftEngine,
            follow_drafting,
            propose,
            propose_shards,
        )
        from draftwire.engines.parallel.mailbox import ShardMailbox
        from draftwire.engines.parallel.reply import FollowingEngine, FollowingProgram, following

        def say_ready(address: Address) -> None:
            which = f"rank {group.rank} " if options.rank_links else ""
            click.echo(f"{which}{READY}{address}")
            sys.stdout.flush()

        run = partial(
            serve,
            config=config,
            host=options.host,
            port=options.port + group.rank if options.port else 0,
            security=options.security,
            ready=say_ready,
        )
        if group.rank and not options.rank_links:
            follow_drafting(group, columns)
            return
        if group.rank:
            shelf = ShardMailbox()
            run(
                FollowingEngine(columns),
                make=partial(FollowingProgram, shelf=shelf),
                watch=lambda server: following(group, columns, server, shelf),
            )
            return
        engine = RankedDraftEngine(group, columns)
        watching = options.watching

        def watch(server: DrafterServer[RankedContext]) -> Any:
            return serving_metrics(watching, server.program, lambda: server.draining)

        proposer = propose_shards if options.rank_links else propose
        try:
            run(
                engine,
                drain_seconds=options.drain_seconds,
                watch=watch,
                make=partial(DrafterProgram, proposer=proposer),
            )
        finally:
            with suppress(TransportError):  # a rank that is gone needs no farewell
                engine.stop()


class RankedTarget(Target):
    """The target that rank 0 leads, with the tokenizer."""

    def __init__(self, engine: Any, columns: ModelColumns, folder: Path) -> None:
        """Take what this rank has of it."""
        self.engine = engine
        self.folder = folder
        self._tokenizer = columns.tokenizer


@contextmanager
def ranked_target(options: GenerateOptions) -> Iterator[tuple[Target, Any] | None]:
    """Yield the target over ranks and its links (None: the leader has the connection).

    Yields None on a rank that follows, once the leader has ended. Raises ConfigurationError.
    """
    assert options.ranks is not None
    with ExitStack() as stack:
        group, columns = stack.enter_context(
            _joined(options.ranks, options.threads, options.target, "target")
        )
        from draftwire.engines.hf import embedded_folder
        from draftwire.engines.parallel.links import LinkFollower, RankLinks
        from draftwire.engines.parallel.target import RankedTargetEngine, follow_verifying
        from draftwire.kernels.shards.shard import even_shards
        from draftwire.verifier.breaker import Breaker
        from draftwire.verifier.parallelism import Ownership
        from draftwire.verifier.rank_client import RankClient

        client = None
        if options.rank_links:
            if options.deadline_ms is None:
                raise ConfigurationError("links from rank to rank need a deadline")
            shard = even_shards(columns.vocab_size, group.size)[group.rank]
            client = stack.enter_context(
                RankClient(
                    options.rank_links[group.rank],
                    columns,
                    None if options.ownership is Ownership.REQUESTS else shard,
                    deadline=options.deadline_ms / 1e3,
                    audit=options.audit,
                    max_depth=options.depth,
                    max_support=max(1, options.layout.support),
                    security=options.security,
                )
            )
        if group.rank:
            links = None if client is None else LinkFollower(group, client)
            follow_verifying(group, columns, links=links)
            yield None
            return
        engine = RankedTargetEngine(group, columns, options.ownership)
        folder = options.target or embedded_folder("target")
        try:
            breaker = Breaker() if options.breaker else None
            led = (
                None
                if client is None
                else RankLinks(group, client, breaker=breaker, audit=options.audit)
            )
            yield RankedTarget(engine, columns, folder), led
        finally:
            with suppress(TransportError):
                engine.stop()
