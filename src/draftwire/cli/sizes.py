"""``draftwire sizes``: bytes and link time of a configuration, and whether the limits carry it.

Source of the table: origin, "Size and critical path". Payload sizes count q alone (FP32, and int32
ids where the layout is sparse); framed sizes are what this wire really sends for a round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from draftwire.cli.options import (
    COUNT,
    DEFAULT_DEPTH,
    DEPTH,
    POSITIVE,
    LayoutChoice,
    LayoutType,
    Number,
    flag,
)
from draftwire.errors import ConfigurationError
from draftwire.verifier.parallelism import SHARDING_PLANS
from draftwire.wire.agreement import q_bytes, reply_bytes
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.registry import (
    HEADER_BYTES,
    MAX_VOCABULARY,
    TRAILER_BYTES,
    Layout,
    MessageType,
)

SUPPORTS = (16, 32, 64, 256)
SHARDS = 2
FRAME_BYTES = HEADER_BYTES + TRAILER_BYTES


@dataclass(frozen=True, slots=True)
class Line:
    """One layout: q bytes, framed bytes and the link's lower bound, for a request and for a batch.

    ``request`` and ``batch`` are payload bytes; ``framed`` are those of REPLY and COMPLETE with all
    headers and checksums; ``ms`` is payload bits over the link's rate, in milliseconds.
    """

    layout: str
    request: int
    batch: int
    framed_request: int
    framed_batch: int
    request_ms: float
    batch_ms: float


def payload_bytes(choice: LayoutChoice, vocab: int, depth: int) -> int:
    """Return the bytes of q in one reply, without any header."""
    return depth * q_bytes(choice.layout, choice.support or vocab)


def framed_bytes(choice: LayoutChoice, vocab: int, depth: int) -> int:
    """Return the bytes that the drafter sends for one round: REPLY and COMPLETE, framed."""
    reply = reply_bytes(choice.layout, vocab, depth, choice.support)
    return reply + PAYLOAD_TABLES[MessageType.COMPLETE].bytes + 2 * FRAME_BYTES


def table(
    vocab: int, depth: int, batch: int, gbps: float, extra: LayoutChoice | None
) -> list[Line]:
    """Return the origin's table, and one more line for a support that is not in it."""
    dense = LayoutChoice(Layout.DENSE, 0)
    supports = sorted({*SUPPORTS, *([extra.support] if extra and extra.support else [])})
    rows = [("dense FP32", dense, vocab)]
    rows += [
        (f"sparse k={k}", LayoutChoice(Layout.SPARSE, k), vocab) for k in supports if k <= vocab
    ]
    shard = -(-vocab // SHARDS)
    rows.append((f"dense TP{SHARDS} shard, {shard:,} ids, per rank", dense, shard))
    return [_line(name, choice, width, depth, batch, gbps) for name, choice, width in rows]


def _line(name: str, choice: LayoutChoice, width: int, depth: int, batch: int, gbps: float) -> Line:
    request = payload_bytes(choice, width, depth)
    framed = framed_bytes(choice, width, depth)
    return Line(
        layout=name,
        request=request,
        batch=batch * request,
        framed_request=framed,
        framed_batch=batch * framed,
        request_ms=link_ms(request, gbps),
        batch_ms=link_ms(batch * request, gbps),
    )


@dataclass(frozen=True, slots=True)
class RankLine:
    """One placement of a target over two ranks: dense q bytes on the busiest link and inside."""

    placement: str
    link_request: int
    link_batch: int
    fabric_batch: int
    link_request_ms: float
    link_batch_ms: float


def rank_table(vocab: int, depth: int, batch: int, gbps: float) -> list[RankLine]:
    """Return every plan over two ranks (origin, "vocabulary-sharded TP2")."""
    lines = []
    for placement in SHARDING_PLANS:
        one = placement.link_bytes(vocab, depth, 1)
        all_ = placement.link_bytes(vocab, depth, batch)
        fabric = placement.fabric_bytes(vocab, depth, batch)
        name, times = placement.name, (link_ms(one, gbps), link_ms(all_, gbps))
        lines.append(RankLine(name, one, all_, fabric, *times))
    return lines


def link_ms(size: int, gbps: float) -> float:
    """Return the time that ``size`` bytes take on the link at its nominal rate, in milliseconds."""
    return size * 8 / (gbps * 1e9) * 1e3


@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """A configuration that is to be run."""

    vocab: int
    depth: int
    batch: int
    slots: int
    choice: LayoutChoice

    def needs(self) -> dict[str, tuple[int, str]]:
        """Return, for each limit of HELLO, the least value that carries this, and the way out."""
        reply = reply_bytes(self.choice.layout, self.vocab, self.depth, self.choice.support)
        return {
            "max_depth": (self.depth, "a smaller --depth"),
            "max_support": (self.choice.support, "a smaller K in --layout sparse:K"),
            "max_sessions": (self.batch, "a smaller --batch"),
            "max_slots": (self.batch * self.slots, "fewer --slots or a smaller --batch"),
            "max_reply_bytes": (reply, "--layout sparse:K or a smaller --depth"),
        }


def broken(wish: ProposeRequest, limits: dict[str, int]) -> Iterator[str]:
    """Yield one sentence for each limit that cannot carry the wish."""
    for name, (need, instead) in wish.needs().items():
        limit = limits.get(name)
        if limit is not None and need > limit:
            yield f"{flag(name)} {limit} is too small: raise it to {need}, or choose {instead}"


@click.command(
    epilog="""\b
Examples:
  draftwire sizes --vocab 129280 --depth 5 --batch 4 --slots 2 --link-gbps 40
  draftwire sizes --vocab 151936 --depth 8 --batch 8 --layout dense --max-reply-bytes 4194304
"""
)
@click.option(
    "--vocab",
    type=click.IntRange(2, MAX_VOCABULARY),
    default=129280,
    show_default=True,
    help="Real vocabulary size V.",
)
@click.option(
    "--depth", type=DEPTH, default=DEFAULT_DEPTH, show_default=True, help="K, tokens of a proposal."
)
@click.option("--batch", type=COUNT, default=4, show_default=True, help="Requests at once.")
@click.option(
    "--slots",
    type=COUNT,
    default=2,
    show_default=True,
    help="Proposals of each request in flight.",
)
@click.option(
    "--link-gbps",
    type=Number(1e-6, 1e6),
    default=40.0,
    show_default=True,
    help="Nominal rate of the link, 10^9 bits a second.",
)
@click.option(
    "--layout",
    type=LayoutType(),
    metavar="dense|sparse:K",
    help="Layout to hold against the limits below.",
)
@click.option("--max-depth", type=POSITIVE, help="Limit: depth.")
@click.option("--max-support", type=POSITIVE, help="Limit: K of a sparse row.")
@click.option("--max-sessions", type=POSITIVE, help="Limit: open sessions.")
@click.option("--max-slots", type=POSITIVE, help="Limit: proposals in flight.")
@click.option("--max-reply-bytes", type=POSITIVE, help="Limit: payload of one REPLY.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def sizes(
    vocab: int,
    depth: int,
    batch: int,
    slots: int,
    link_gbps: float,
    layout: LayoutChoice | None,
    as_json: bool,
    **limits: int | None,
) -> None:
    """Show bytes and link time of a configuration, and hold it against negotiated limits.

    Payload bytes are q alone; framed bytes are what the wire sends for a round with every header
    and checksum. Times are the lower bound of serialisation on one link and no latency. With any
    --max-... the configuration of --layout (dense unless you say) is checked against those limits,
    the ones HELLO agrees on; exit code 3 when it does not fit.
    """
    agreed = {name: limit for name, limit in limits.items() if limit is not None}
    if layout and layout.support > vocab:
        raise click.UsageError(f"--layout {layout} is wider than the vocabulary of {vocab} ids")
    lines = table(vocab, depth, batch, link_gbps, layout)
    in_flight = slots * lines[0].batch
    wish = ProposeRequest(vocab, depth, batch, slots, layout or LayoutChoice(Layout.DENSE, 0))
    faults = list(broken(wish, agreed))
    if as_json:
        click.echo(_as_json(lines, wish, link_gbps, in_flight, agreed, faults))
    else:
        click.echo(_as_text(lines, wish, link_gbps, in_flight, agreed, faults))
    if faults:
        raise ConfigurationError("; ".join(faults))


def _as_json(
    lines: list[Line],
    wish: ProposeRequest,
    gbps: float,
    in_flight: int,
    limits: dict[str, int],
    faults: list[str],
) -> str:
    return json.dumps(
        {
            "vocab": wish.vocab,
            "depth": wish.depth,
            "batch": wish.batch,
            "slots": wish.slots,
            "link_gbps": gbps,
            "layouts": [asdict(line) for line in lines],
            "ranks": [
                asdict(line) for line in rank_table(wish.vocab, wish.depth, wish.batch, gbps)
            ],
            "dense_in_flight_bytes": in_flight,
            "preflight": {"layout": str(wish.choice), "limits": limits, "broken": faults}
            if limits
            else None,
        },
        indent=2,
    )


def _as_text(
    lines: list[Line],
    wish: ProposeRequest,
    gbps: float,
    in_flight: int,
    limits: dict[str, int],
    faults: list[str],
) -> str:
    width = max(len(line.layout) for line in lines)
    batch = f"{wish.batch} request{'s' if wish.batch > 1 else ''}"
    out = [
        f"V = {wish.vocab:,}, depth {wish.depth}, batch {wish.batch}, {gbps:g} Gb/s",
        "",
        f"{'':{width}}  {'payload bytes (q)':>27}  {'framed bytes':>27}  {'ms on the link':>15}",
        f"{'layout':{width}}  {'request':>13} {batch:>13}  {'request':>13} {batch:>13}"
        f"  {'request':>7} {'batch':>7}",
    ]
    out += [
        f"{line.layout:{width}}  {line.request:>13,} {line.batch:>13,}"
        f"  {line.framed_request:>13,} {line.framed_batch:>13,}"
        f"  {line.request_ms:>7.3f} {line.batch_ms:>7.3f}"
        for line in lines
    ]
    out += [
        "",
        f"{wish.slots} dense batch slot{'s' if wish.slots > 1 else ''} in flight:"
        f" {in_flight:,} bytes ({in_flight / 2**20:.2f} MiB) per full copy on each endpoint",
    ]
    out += ["", *_rank_text(rank_table(wish.vocab, wish.depth, wish.batch, gbps))]
    if limits and not faults:
        out += ["", f"fits: {wish.choice} is carried by {', '.join(map(flag, limits))}"]
    return "\n".join(out)


def _rank_text(lines: list[RankLine]) -> list[str]:
    width = max(len(line.placement) for line in lines)
    return [
        f"dense q over {SHARDS} ranks: bytes on the busiest link, copied inside, ms on that link",
        f"{'':{width}}  {'request':>13} {'batch':>13}  {'inside':>13}  {'request':>7} {'batch':>7}",
        *(
            f"{line.placement:{width}}  {line.link_request:>13,} {line.link_batch:>13,}"
            f"  {line.fabric_batch:>13,}  {line.link_request_ms:>7.3f} {line.link_batch_ms:>7.3f}"
            for line in lines
        ),
    ]
