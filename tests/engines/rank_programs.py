"""What the ranks of the tests run, each in a process of its own; they speak through pipes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from draftwire.transport.tcp import free_address

PRELOADED = ["tests.engines.rank_preload", __name__]


def context() -> Any:
    """Processes forked from one that has imported everything once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


class Ranks:
    """Processes of one group, each with a pipe to the test."""

    def __init__(self, program: Callable[..., None], size: int, *arguments: object) -> None:
        rendezvous = str(free_address())
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(size):
            here, there = context().Pipe()
            process = context().Process(
                target=_run, args=(program, there, rank, size, rendezvous, *arguments), daemon=True
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def hear(self, rank: int, patience: float = 120.0) -> Any:
        """What a rank says next."""
        if not self.pipes[rank].poll(patience):
            raise TimeoutError(f"rank {rank} says nothing")
        return self.pipes[rank].recv()

    def tell(self, rank: int, thing: object) -> None:
        self.pipes[rank].send(thing)

    @contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """A rank hangs, as a machine does that swaps; it goes on afterwards."""
        process = self.processes[rank].pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        try:
            # The state stands behind the name, which is in brackets and may hold anything.
            while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join(20)

    def end(self) -> None:
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)


@contextmanager
def ranks(program: Callable[..., None], size: int, *arguments: object) -> Iterator[Ranks]:
    group = Ranks(program, size, *arguments)
    try:
        yield group
    finally:
        for process in group.processes:
            process.kill()
        group.end()


def _run(program: Callable[..., None], pipe: Connection, *arguments: object) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)
    program(pipe, *arguments)


def sharded_arithmetic(pipe: Connection, rank: int, size: int, rendezvous: str) -> None:
    """Quantise, draw and verify rows that every rank makes for itself from one seed."""
    from draftwire.engines.parallel.group import join, leave
    from draftwire.kernels.shards.shard import drive
    from tests.engines.rank_rows import sharded_rows

    group = join(rank, size, rendezvous)
    pipe.send(drive(group, sharded_rows(rank, size)))
    leave()


def lost_rank(
    pipe: Connection, rank: int, size: int, rendezvous: str, patience: float | None = None
) -> None:
    """Every rank waits in a collective for the last one, which never comes."""
    import numpy as np

    from draftwire.engines.parallel.group import FOREVER, join
    from draftwire.errors import TransportError

    group = join(rank, size, rendezvous, patience=patience or FOREVER)
    pipe.send("met")
    if rank == size - 1:
        pipe.recv()
        return
    try:
        group.sum(np.zeros(1, np.int64))
        pipe.send("went on")
    except TransportError:
        pipe.send("gone")


def drafter_rank(
    pipe: Connection, rank: int, size: int, rendezvous: str, linked: bool = False
) -> None:
    """One rank of a drafter of the embedded pair; the listener says where.

    linked: every rank answers on a link of its own; otherwise the leader does for all.
    """
    from draftwire.drafter.program import DrafterConfig, DrafterProgram
    from draftwire.drafter.server import DrafterServer
    from draftwire.engines.hf.loader import embedded_folder
    from draftwire.engines.parallel.columns import load_columns
    from draftwire.engines.parallel.drafter import (
        RankedDraftEngine,
        follow_drafting,
        propose,
        propose_shards,
    )
    from draftwire.engines.parallel.group import join
    from draftwire.engines.parallel.mailbox import ShardMailbox
    from draftwire.engines.parallel.reply import FollowerEngine, FollowerProgram, follower_thread
    from draftwire.errors import TransportError
    from draftwire.transport.tcp import listen

    columns = load_columns(embedded_folder("drafter"), rank, size, real_only=True)
    group = join(rank, size, rendezvous)
    if rank and not linked:
        try:
            follow_drafting(group, columns)
        except TransportError:
            pipe.send("the leader is gone")
        return
    config = DrafterConfig(shard_count=size if linked else 1)
    if rank:
        mailbox = ShardMailbox()
        program = FollowerProgram(FollowerEngine(columns), config, mailbox)
        with DrafterServer(program, listen("127.0.0.1", 0)) as server:
            pipe.send(str(server.address))
            with follower_thread(group, columns, server, mailbox):
                server.run()
        pipe.send("the leader is gone")
        return
    proposer = propose_shards if linked else propose
    program = DrafterProgram(RankedDraftEngine(group, columns), config, proposer=proposer)
    program.warm_up()
    server = DrafterServer(program, listen("127.0.0.1", 0))
    pipe.send(str(server.address))
    server.run()


def verifier_rank(pipe: Connection, rank: int, size: int, rendezvous: str, delay: Any) -> None:
    """One rank of a target of the embedded pair.

    The test tells every rank where its links go (None: the leader has the only connection), and the
    leader what to write, both as often as it likes. delay: seconds that a rank other than the
    leader loses, before each round is scored and before its link asks.
    """
    from draftwire.engines.hf.loader import embedded_folder
    from draftwire.engines.parallel.columns import load_columns
    from draftwire.engines.parallel.group import join
    from draftwire.engines.parallel.links import LinkFollower, RankLinks
    from draftwire.engines.parallel.target import RankedTargetEngine, follow_verifying
    from draftwire.errors import TransportError
    from draftwire.kernels.shards.shard import even_shards
    from draftwire.verifier.breaker import Breaker, Choice
    from draftwire.verifier.parallelism import Parallelism
    from draftwire.verifier.rank_client import RankClient

    columns = load_columns(embedded_folder("target"), rank, size)
    group: Any = Counted(join(rank, size, rendezvous))
    pipe.send("ready")

    class Dawdling(RankClient):
        """A link that asks late."""

        def ask(self, *asked: Any) -> None:
            time.sleep(delay[1] if rank else 0.0)
            super().ask(*asked)

    class Choosing(Breaker):
        """Drafted, measured without drafts, paused by link and request: whatever times are."""

        def admits(self, requests: Any, size: int | None = None) -> list[Choice]:
            return [next(choices) for _ in requests]

        def finished(self, *told: Any, **named: Any) -> list[Any]:
            return []

    choices = cycle(Choice)

    def linked(
        addresses: list[str] | None,
        deadline: float = 20.0,
        ownership: str = "VOCABULARY",
        breaker: bool = False,
    ) -> RankClient | None:
        shard = even_shards(columns.vocab_size, size)[rank]
        if addresses is None:
            return None
        return Dawdling(
            addresses[rank],
            columns,
            shard if ownership == "VOCABULARY" else None,
            deadline=deadline,
            connect_timeout=20.0,
        )

    while rank and (told := pipe.recv()) is not None:
        client = linked(**told)
        try:
            follow_verifying(
                group,
                columns,
                links=None if client is None else LinkFollower(group, client),
                on_text=lambda request: pipe.send((request.text, request.rounds)),
                before_round=lambda: time.sleep(delay[0]),
            )
        except TransportError as error:
            pipe.send(type(error).__name__)
            return
        if client is not None:
            client.close()
    if rank:
        return
    while (told := pipe.recv()) is not None:
        client = linked(**told)
        ownership = Parallelism[told.get("ownership", "VOCABULARY")]
        target = RankedTargetEngine(group, columns, ownership)
        target.end_tokens = frozenset()  # a text of the tests has its full length
        breaker = Choosing() if told.get("breaker") else None
        links = None if client is None else RankLinks(group, client, breaker=breaker)
        while (wish := pipe.recv()) is not None:
            try:
                pipe.send(_text(pipe, target, links, **wish))
            except TransportError as error:
                pipe.send(type(error).__name__)
                return
        target.stop()
        if client is not None:
            client.close()


class Counted:
    """A group that counts the bytes which its leader broadcasts, and sends to one rank alone."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.broadcast_bytes = 0
        self.sent_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def broadcast(self, values: Any) -> Any:
        self.broadcast_bytes += values.nbytes
        return self._group.broadcast(values)

    def send(self, values: Any, rank: int) -> None:
        self.sent_bytes += values.nbytes
        self._group.send(values, rank)


def _text(
    pipe: Connection,
    target: Any,
    links: Any,
    *,
    address: str = "",
    prompt: list[int],
    seed: int,
    tokens: int,
    temperature: float = 1.0,
    deadline: float = 20.0,
    pause_at: int = -1,
    support: int = 0,
    changes: int | None = None,
    **processors: Any,
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """One text by the leader; at token ``pause_at`` it waits until the test says go on.

    changes: before which look at the target's settings they change, counted from 0; None: never.
    """
    from draftwire.engines.parallel.target import RankedGeneration
    from draftwire.verifier.remote import RemoteDrafter
    from draftwire.verifier.sampling import Sampling
    from draftwire.wire.messages import ProposalPolicy
    from draftwire.wire.registry import Layout

    def pause(emission: Any) -> None:
        if emission.index == pause_at:
            pipe.send("paused")
            pipe.recv()

    vars(target).pop("settings", None)
    if changes is not None:
        looks = count()
        target.settings = lambda context: b"after" if next(looks) >= changes else b"before"
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=tokens, **processors)
    policy = ProposalPolicy(Layout.SPARSE if support else Layout.DENSE, 3, 1.0, support)
    before = target.group.broadcast_bytes, target.group.sent_bytes
    with ExitStack() as stack:
        drafter = links
        if links is None:
            drafter = stack.enter_context(
                RemoteDrafter(address, target, deadline=deadline, connect_timeout=20.0)
            )
        generation = stack.enter_context(
            RankedGeneration(target, drafter, prompt, sampling, policy, on_emission=pause)
        )
        text = tuple(emission.token for emission in generation)
    group, report = target.group, generation.report.as_dict()
    report["broadcast_bytes"] = group.broadcast_bytes - before[0]
    report["owner_bytes"] = group.sent_bytes - before[1]
    report["vocab_size"] = target.vocab_size
    return text, report
