"""What guided fuzzing runs: the first byte of an input chooses a target, the rest is for it.

Frames come in a compact form (type, options, length, payload), so that nothing is spent on finding
checksums; raw bytes are a target as well.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from draftwire.conformance.vectors import open_vectors
from draftwire.conformance.wire import compiled_counts, exact_counts
from draftwire.errors import ConfigurationError, ProtocolError
from draftwire.transport.keys import PresharedKey
from draftwire.wire import agreement, codec
from draftwire.wire.messages import Reply, ReplyRows, Step
from draftwire.wire.registry import Layout, MessageType, WireVersion
from spec.generators.vectors import frames as good
from spec.oracle import messages
from spec.oracle.frames import Refused, crc32c, read_fields, table_bytes
from testing.fuzz import frames, transcripts
from testing.fuzz.frames import Context, Disagreement
from testing.fuzz.pieces import Piece, written

NEW_TURN, OTHER_VERSION, FLAGGED = 1, 2, 4  # options of a compact frame

np.seterr(all="ignore")  # the loops wrap around on purpose; compiled they say nothing either


def run(data: bytes) -> None:
    """Run one input; raises only what is a finding."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


# Frames in their compact form --------------------------------------------------------------------


def compact(turns: Sequence[Sequence[Piece]]) -> bytes:
    """Turns of frames as an input."""
    data = bytearray()
    for turn in turns:
        for index, piece in enumerate(turn):
            option = 0 if index else NEW_TURN
            data += struct.pack("<BBH", piece.type, option, len(piece.payload)) + piece.payload
    return bytes(data)


def expanded(data: bytes, version: int) -> list[list[Piece]]:
    """The turns of an input, whatever it is; lengths end where the input does."""
    turns: list[list[Piece]] = [[]]
    at = 0
    while at + 4 <= len(data):
        kind, option, length = struct.unpack_from("<BBH", data, at)
        payload = data[at + 4 : at + 4 + length]
        at += 4 + len(payload)
        if option & NEW_TURN:
            turns.append([])
        other = 3 - version if option & OTHER_VERSION else version
        turns[-1].append(Piece(other, kind, payload, 1 if option & FLAGGED else 0))
    return turns


# Targets -----------------------------------------------------------------------------------------


@cache
def places() -> list[Context]:
    """The contexts of frames."""
    return frames.contexts()


@cache
def talks() -> list[transcripts.Material]:
    """Both directions of every conversation."""
    return transcripts.materials()


def raw_frames(data: bytes) -> None:
    """Bytes as they are, in a context."""
    if data:
        context = places()[data[0] % len(places())]
        stream = data[1:]
        frames.check(stream, context, [stream[i : i + 7] for i in range(0, len(stream), 7)])


def whole_frames(data: bytes) -> None:
    """Frames whose checksums are right, in a context."""
    if data:
        context = places()[data[0] % len(places())]
        pieces = [piece for turn in expanded(data[1:], context.version) for piece in turn]
        if context.sealed:
            stream = frames.sealed_stream(pieces)
        else:
            stream = b"".join(piece.written() for piece in pieces)
        frames.check(stream, context, [stream[i : i + 7] for i in range(0, len(stream), 7)])


def role(data: bytes) -> None:
    """Frames whose checksums and MACs are right, to one of both roles from the beginning."""
    if data:
        material = talks()[data[0] % len(talks())]
        turns = expanded(data[1:], material.setup.version)
        transcripts.check(material, written(turns, material.keyed), Random(len(data)))


def raw_role(data: bytes) -> None:
    """Bytes as they are, to one of both roles."""
    if data:
        material = talks()[data[0] % len(talks())]
        transcripts.check(material, [data[1:]], Random(len(data)))


def rows(data: bytes) -> None:
    """The q's of a reply, by the plain decoder, the compiled one and the oracle (P14)."""
    if len(data) < 4:
        return
    layout = Layout(data[0] % 3)
    vocab_size, support, depth = data[1] % 9 + 1, data[2] % 5 + 1, data[3] % 3 + 1
    support = {Layout.DENSE: vocab_size, Layout.SPARSE: support, Layout.IDS_ONLY: 0}[layout]
    size = agreement.q_bytes(layout, support)
    body = data[4 : 4 + depth * (16 + size)]
    if len(body) < depth * (16 + size):
        return
    packed = bytearray(body)
    for index in range(depth):
        at = index * (16 + size)
        q = bytes(packed[at + 16 : at + 16 + size])
        if packed[at + 15] & 1:  # half of all checksums are made right
            struct.pack_into("<I", packed, at + 12, crc32c(q) if q else 0)
    check_rows(bytes(packed), layout, vocab_size, support, depth)


def check_rows(body: bytes, layout: Layout, vocab_size: int, support: int, depth: int) -> None:
    """All readers say the same of the rows of a reply."""
    size = agreement.q_bytes(layout, support)
    head = {**good.REPLY, "layout": layout, "first_position": 3, "support": support}
    head |= {"shard_end": vocab_size, "depth": depth, "rows": []}
    for at in range(0, len(body), 16 + size):
        row, rest = read_fields("POSITION", body[at:])
        head["rows"].append({**row, "q": rest[:size]})
    expected: object
    try:
        expected = messages.read_rows(head, {"vocab_size": vocab_size})
    except Refused as refusal:
        expected = refusal.code
    reply = Reply(
        session=7,
        slot=1,
        layout=layout,
        generation=1,
        round=1,
        first_position=3,
        prefix_digest=bytes(16),
        context_version=0,
        shard_index=0,
        shard_count=1,
        shard_begin=0,
        shard_end=vocab_size,
        support=support,
        rows=ReplyRows(body, size),
    )
    for decoder in (exact_counts, compiled_counts):
        found: object
        try:
            found = decoder(reply, vocab_size)
        except ProtocolError as error:
            found = error.code.name
        if found != expected:
            raise Disagreement(f"{decoder.__name__}: {found}, not {expected}")


def hellos(data: bytes) -> None:
    """Two HELLOs that decode, in any order: what both sides agree on (P7, P8)."""
    size = table_bytes("HELLO")
    if len(data) < 2 * size + 1:
        return
    version = data[0] % 2 + 1
    payloads = data[1 : 1 + size], data[1 + size : 1 + 2 * size]
    try:
        for payload in payloads:
            codec.decode(MessageType.HELLO, WireVersion(version), memoryview(payload), None)
    except ProtocolError:
        return
    one, other = (read_fields("HELLO", payload)[0] for payload in payloads)
    if one["role"] == 2:
        one, other = other, one
    frames.check_agreement(one, other, other, version)
    frames.check_agreement(one, other, one, version)


def policies(data: bytes) -> None:
    """A STEP that decodes has a policy that HELLO allows, or one sentence says why not."""
    if not data:
        return
    context = places()[data[0] % len(places())]
    if context.agreed is None:
        return
    try:
        step = codec.decode(
            MessageType.STEP, WireVersion(context.version), memoryview(data[1:]), context.agreed
        )
    except ProtocolError:
        return
    if isinstance(step, Step):
        agreement.require_carried(context.agreed, step.policy)


@cache
def file() -> Path:
    """A file that the targets of files write."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    return Path(name)


def files(data: bytes) -> None:
    """A key file and a vector file: what they hold, or one sentence."""
    file().write_bytes(data[1:])
    try:
        if data[:1] < b"\x80":
            PresharedKey.read(file())
        else:
            for _ in open_vectors(file()).vectors():
                pass
    except ConfigurationError:
        pass


TARGETS: tuple[Callable[[bytes], None], ...] = (
    whole_frames,
    role,
    rows,
    hellos,
    policies,
    raw_frames,
    raw_role,
    files,
)


# Seeds -------------------------------------------------------------------------------------------


def seeds() -> Iterator[bytes]:
    """Good inputs of every target, from the conversations and from the oracle's frames."""
    for number, context in enumerate(places()):
        place = bytes([number])
        stream = b"".join(piece.written() for piece in context.material)
        yield bytes([TARGETS.index(raw_frames)]) + place + stream[:2000]
        for piece in context.material:
            yield bytes([TARGETS.index(whole_frames)]) + place + compact([[piece]])
            if piece.type == MessageType.STEP:
                yield bytes([TARGETS.index(policies)]) + place + piece.payload
    for number, talk in enumerate(talks()):
        place = bytes([number])
        yield bytes([TARGETS.index(role)]) + place + compact(talk.turns)
        yield bytes([TARGETS.index(raw_role)]) + place + b"".join(written(talk.turns, talk.keyed))
    for layout, support in ((0, 0), (1, 6), (2, 3)):
        written_rows = good.rows(layout, support)
        body = messages.write_reply(good.REPLY, written_rows)[table_bytes("REPLY") :]
        yield bytes([TARGETS.index(rows), layout, 5, max(support - 1, 0), 1]) + body
    for version, pair in ((1, (good.HELLO_V1, good.DRAFTER_V1)), (2, (good.HELLO, good.DRAFTER))):
        both = b"".join(good.payload_of("HELLO", hello) for hello in pair)
        yield bytes([TARGETS.index(hellos), version - 1]) + both
    yield bytes([TARGETS.index(files), 0]) + bytes(range(32)).hex().encode()
    header = (
        b'{"format":"draftwire-vectors","version":1,"kind":"draw","count":1}\n{"id":"a","op":"b"}'
    )
    yield bytes([TARGETS.index(files), 255]) + header + b"\n"
