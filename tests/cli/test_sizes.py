"""``draftwire sizes``: the origin's table to the byte, framed sizes, and the preflight."""

from __future__ import annotations

import json

import pytest

from draftwire.cli.options import LayoutChoice
from draftwire.cli.sizes import framed_bytes, payload_bytes
from draftwire.errors import ExitCode
from draftwire.wire.codec import encode
from draftwire.wire.frames import encode_frame
from draftwire.wire.messages import Complete, Reply, ReplyRow, ReplyRows
from draftwire.wire.registry import Layout, MessageType, Status, WireVersion
from tests.cli.conftest import Cli

ORIGIN = ("sizes", "--vocab", "129280", "--depth", "5", "--batch", "4", "--slots", "2")
ORIGIN += ("--link-gbps", "40")


def test_the_table_of_the_origin_to_the_byte(cli: Cli) -> None:
    found = json.loads(cli(*ORIGIN, "--json").out)
    sizes = {row["layout"]: (row["request"], row["batch"]) for row in found["layouts"]}
    assert sizes == {
        "dense FP32": (2_585_600, 10_342_400),
        "sparse k=16": (640, 2_560),
        "sparse k=32": (1_280, 5_120),
        "sparse k=64": (2_560, 10_240),
        "sparse k=256": (10_240, 40_960),
        "dense TP2 shard, 64,640 ids, per rank": (1_292_800, 5_171_200),
    }
    assert found["dense_in_flight_bytes"] == 20_684_800
    dense = found["layouts"][0]
    assert (round(dense["request_ms"], 3), round(dense["batch_ms"], 3)) == (0.517, 2.068)
    assert round(found["layouts"][-1]["request_ms"], 3) == 0.259


def test_both_ownerships_over_both_kinds_of_link(cli: Cli) -> None:
    """One shard a link is half the bytes and half the time; the leader's link carries it all."""
    ranks = json.loads(cli(*ORIGIN, "--json").out)["ranks"]
    found = {
        row["placement"]: (row["link_request"], row["link_batch"], row["fabric_batch"])
        for row in ranks
    }
    whole = (2_585_600, 10_342_400, 10_342_400)
    assert found == {
        "request-sharded, leader link, then broadcast": whole,
        "vocabulary-sharded, leader link, then broadcast": whole,
        "request-sharded, rank-to-rank links": (2_585_600, 5_171_200, 0),
        "vocabulary-sharded, rank-to-rank links": (1_292_800, 5_171_200, 0),
    }
    assert [round(row["link_request_ms"], 3) for row in ranks] == [0.517, 0.517, 0.517, 0.259]
    assert [round(row["link_batch_ms"], 3) for row in ranks] == [2.068, 2.068, 1.034, 1.034]


def test_the_table_is_readable(cli: Cli) -> None:
    ran = cli(*ORIGIN)
    assert ran.code == ExitCode.OK
    for number in ("2,585,600", "10,342,400", "20,684,800 bytes (19.73 MiB)", "0.517", "2.068"):
        assert number in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_an_odd_vocabulary_gives_the_wider_shard(cli: Cli) -> None:
    rows = json.loads(cli("sizes", "--vocab", "101", "--depth", "1", "--json").out)["layouts"]
    assert rows[-1]["request"] == 51 * 4


def test_a_support_wider_than_the_vocabulary_is_left_out_or_refused(cli: Cli) -> None:
    rows = json.loads(cli("sizes", "--vocab", "64", "--json").out)["layouts"]
    assert [row["layout"] for row in rows if row["layout"].startswith("sparse")] == [
        "sparse k=16",
        "sparse k=32",
        "sparse k=64",
    ]
    ran = cli("sizes", "--vocab", "64", "--layout", "sparse:65")
    assert ran.code == ExitCode.USAGE and "64 ids" in ran.err


@pytest.mark.parametrize("choice", [LayoutChoice(Layout.DENSE, 0), LayoutChoice(Layout.SPARSE, 3)])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_framed_bytes_are_those_of_the_real_encoder(choice: LayoutChoice, depth: int) -> None:
    vocab, digest = 7, bytes(16)
    q = bytes(payload_bytes(choice, vocab, 1))
    row = ReplyRow(position=1, token=0, entries=1, checksum=0, q=q)
    reply = Reply(
        session=1,
        slot=0,
        layout=choice.layout,
        generation=1,
        round=1,
        first_position=1,
        prefix_digest=digest,
        context_version=0,
        shard_index=0,
        shard_count=1,
        shard_begin=0,
        shard_end=vocab,
        support=choice.support or vocab,
        rows=ReplyRows.of([row] * depth),
    )
    complete = Complete(1, 0, Status.OK, 1, 1, 1, digest, 0, 0, 0)
    frames = [
        encode_frame(WireVersion.V2, MessageType.REPLY, *encode(reply)),
        encode_frame(WireVersion.V2, MessageType.COMPLETE, *encode(complete)),
    ]
    real = sum(len(bytes(part)) for frame in frames for part in frame)
    assert framed_bytes(choice, vocab, depth) == real


LARGE = ("sizes", "--vocab", "151936", "--depth", "8", "--batch", "8", "--slots", "1")


def test_x45_a_dense_batch_over_the_limit_is_refused_with_what_to_change(cli: Cli) -> None:
    ran = cli(*LARGE, "--max-reply-bytes", str(1 << 22))
    assert ran.code == ExitCode.CONFIGURATION
    assert "--max-reply-bytes 4194304 is too small: raise it to" in ran.err
    assert "sparse:K" in ran.err and ran.err.count("\n") == 1
    need = int(ran.err.split("raise it to ")[1].split(",")[0])
    assert cli(*LARGE, "--max-reply-bytes", str(need)).code == ExitCode.OK
    assert cli(*LARGE, "--max-reply-bytes", str(need - 1)).code == ExitCode.CONFIGURATION
    assert cli(*LARGE, "--layout", "sparse:32", "--max-reply-bytes", "4096").code == ExitCode.OK


@pytest.mark.parametrize(
    ("limit", "fits", "breaks"),
    [
        ("--max-depth", 8, 7),
        ("--max-support", 32, 31),
        ("--max-sessions", 8, 7),
        ("--max-slots", 16, 15),
    ],
)
def test_each_limit_is_held_against_the_wish_at_its_edge(
    cli: Cli, limit: str, fits: int, breaks: int
) -> None:
    wish = ("sizes", "--depth", "8", "--batch", "8", "--slots", "2", "--layout", "sparse:32")
    good, bad = cli(*wish, limit, str(fits)), cli(*wish, limit, str(breaks))
    assert good.code == ExitCode.OK and "fits: sparse:32" in good.out
    assert bad.code == ExitCode.CONFIGURATION
    assert f"{limit} {breaks} is too small: raise it to {fits}" in bad.err
    assert json.loads(cli(*wish, limit, str(breaks), "--json").out)["preflight"]["broken"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--vocab", "1"),
        ("--vocab", "20000000"),
        ("--depth", "0"),
        ("--depth", "65"),
        ("--batch", "0"),
        ("--slots", "0"),
        ("--link-gbps", "0"),
        ("--link-gbps", "inf"),
        ("--link-gbps", "nan"),
        ("--link-gbps", "fast"),
        ("--link-gbps", "1e-320"),  # times of infinity, which JSON has not
        ("--batch", str(10**400)),
        ("--slots", str(1 << 31)),
        ("--layout", "sparse:0"),
        ("--layout", "sparse"),
        ("--layout", "dense:3"),
        ("--layout", "packed"),
        ("--max-depth", "0"),
    ],
)
def test_senseless_values_are_usage_errors(cli: Cli, arguments: tuple[str, str]) -> None:
    ran = cli("sizes", *arguments)
    assert ran.code == ExitCode.USAGE and arguments[0] in ran.err and ran.err.count("\n") == 1
