"""The tables of ``make two-hosts``, as text."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.twohosts.results import DENSE, SPARSE, LinkFound, PairFound, WayFound
from benchmarks.twohosts.ways import TARGET_ONLY
from benchmarks.twohosts.wide import DEPTH, VOCABULARY

_HEAD = (
    f"{'':19} {'tokens/s':>9} {'x target-only':>22} {'tok/pass':>8} {'accepted':>8}"
    f" {'rounds':>6} {'drafted':>7} {'lost':>4}  breaker, and the cost of an hour"
)


def link_table(link: LinkFound) -> str:
    """Return everything about one link: what it is, the large vocabulary's bytes, each pair."""
    wide = link.wide
    lines = [f"== {link.name} added; round trip {link.round_trip * 1e3:.2f} ms (median of PINGs)"]
    for name, seconds in ((SPARSE, wide.sparse), (DENSE, wide.dense)):
        size, least = link.serialisation(name)
        lines.append(
            f"   one answer of V = {VOCABULARY:,}, K = {DEPTH}, {name + ':':10} {size:>9,} bytes,"
            f" {least:7.2f} ms on the link by arithmetic, {seconds * 1e3:7.2f} ms asked to audited"
        )
    lines.append(f"   so dense came at {wide.megabits:,.0f} Mb/s, unpacking included")
    for pair in link.pairs:
        lines += ["", f"   {pair.name}: {pair.turns} turns", f"   {_HEAD}"]
        lines += [f"   {_line(way)}" for way in pair.ways]
    return "\n".join(lines) + "\n"


def _line(way: WayFound) -> str:
    rate, cost, report = way.rate, way.cost, way.report
    speed = f"{1 / cost.middle:.2f} ({1 / cost.high:.2f}..{1 / cost.low:.2f})"
    accepted = "-" if way.acceptance is None else f"{way.acceptance:.2f}"
    line = (
        f"{way.name:19} {rate.middle:>9.1f} {speed:>22} {report.tokens_per_target_pass:>8.2f}"
        f" {accepted:>8} {report.rounds:>6} {way.drafted:>7.0%} {way.lost:>4}"
    )
    if way.breaker is None:
        return line
    found = way.breaker
    hour = f"{found.long_run.cost:.3f}x, {found.long_run.drafted:.0%} drafted"
    return f"{line}  {found.state}; {hour}"


def summary(links: Sequence[LinkFound]) -> str:
    """Return tokens/s of every way, a line a link, a block a pair."""
    blocks = []
    for pairs in zip(*(link.pairs for link in links), strict=True):
        names = [way.name for way in pairs[0].ways]
        width = max(len(name) for name in names)
        lines = [f"tokens/s, {pairs[0].name}"]
        lines.append(
            f"{'link':16} {'round trip':>10}  " + "  ".join(f"{n:>{width}}" for n in names)
        )
        for link, pair in zip(links, pairs, strict=True):
            cells = [f"{_cell(pair, name):>{width}}" for name in names]
            trip = f"{link.round_trip * 1e3:.2f} ms"
            lines.append(f"{link.name:16} {trip:>10}  " + "  ".join(cells))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _cell(pair: PairFound, name: str) -> str:
    way = next(each for each in pair.ways if each.name == name)
    rate = f"{way.rate.middle:.1f}"
    return rate if name == TARGET_ONLY else f"{rate} ({1 / way.cost.middle:.2f}x)"
