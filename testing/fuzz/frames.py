"""The wire's reader beside the oracle's: any bytes are the same messages and the same refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

from draftwire.conformance.vectors import Vector
from draftwire.conformance.wire import NUMBERS, agreed_of, hello_of, read_frame
from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session.frame_mac import Sealer
from draftwire.wire import agreement, codec
from draftwire.wire.agreement import Agreed
from draftwire.wire.frames import Bounds, FrameReader
from draftwire.wire.registry import MessageType, Role, WireVersion
from spec.generators.vectors import frames as good
from spec.generators.vectors import mirrored, states, stopped
from spec.oracle import keys, messages
from spec.oracle.agreement import agree
from spec.oracle.frames import TYPES, Fields, Refused, read_fields, read_frames, write_fields
from testing.fuzz.mutations import mutated_bytes, mutated_piece, random_split
from testing.fuzz.pieces import Piece, cut

SEAL = bytes(range(32))  # of the direction that is read


@dataclass(frozen=True)
class Context:
    """Where a connection stands when the bytes arrive, in the words of both readers."""

    name: str
    version: int
    limits: Mapping[str, Any] | None
    largest: Mapping[str, int]  # the oracle's bounds
    bounds: Bounds
    agreed: Agreed | None
    sealed: bool
    material: tuple[Piece, ...]


Outline = tuple[list[tuple[str, bytes]], str | None]


@dataclass(frozen=True)
class Reading:
    """What a reader makes of a stream: its messages, then why it goes no further."""

    messages: list[Vector]
    refused: str | None


class Disagreement(AssertionError):
    """Two readings of the same bytes are not the same; both are in the message."""


# Contexts ----------------------------------------------------------------------------------------


def contexts() -> list[Context]:
    """Before the key, before HELLO, and agreed in several ways, for every receiver."""
    return [*early(), *later()]


def early() -> Iterator[Context]:
    """Before anything is agreed."""
    for version in (1, 2):
        hellos = [good.HELLO_V1, good.DRAFTER_V1] if version == 1 else [good.HELLO, good.DRAFTER]
        hellos += [states.FUSING, states.FUSABLE] if version == 2 else []
        greeting = tuple(
            Piece(version, MessageType.HELLO, messages.write_hello(hello)) for hello in hellos
        )
        shake = tuple(
            Piece(version, kind, bytes(range(32)))
            for kind in (MessageType.CHALLENGE, MessageType.PROOF)
        )
        error = Piece(version, MessageType.ERROR, write_fields("ERROR", ERROR))
        versions = frozenset({WireVersion(version)})
        for due, largest in (
            (MessageType.CHALLENGE, messages.BOUNDS_BEFORE_NONCE),
            (MessageType.PROOF, messages.BOUNDS_BEFORE_PROOF),
        ):
            bounds = agreement.handshake_bounds(due, WireVersion(version))
            name = f"v{version}, {due.name} is due"
            yield Context(
                name, version, None, largest, bounds, None, False, (*shake, error, greeting[0])
            )
        for sealed in (False, True):
            yield Context(
                f"v{version}, before HELLO{', sealed' if sealed else ''}",
                version,
                None,
                messages.BOUNDS_BEFORE_HELLO,
                agreement.bounds(None, versions=versions),
                None,
                sealed,
                (*greeting, *greeting, error, shake[0]),
            )


def later() -> Iterator[Context]:
    """After agreement: every layout, one shard or two, each receiver, with a key or without."""
    v2 = good.LIMITS_V2
    agreements: dict[str, Mapping[str, Any]] = {
        "v1": good.LIMITS_V1,
        "v2": v2,
        "v2 dense": {**v2, "layouts": 2, "hidden_rows": 0, "hidden_dtype": 0, "hidden_width": 0},
        "v2 sparse": {**v2, "layouts": 4, "hidden_dtype": 1, "hidden_width": 3, "hidden_rows": 1},
        "v2, two shards": {**v2, "shard_count": 2},
        "v2, mirrored": mirrored.MIRRORED,
        "v2, stopped early": stopped.STOPPED,
        "v2, states": states.RAW,
        "v2, fused states": states.FUSED,
    }
    receivers: tuple[tuple[str, Role | None, str], ...] = (
        ("anyone", None, ""),
        ("a drafter", Role.DRAFTER, "verifier"),
        ("a verifier", Role.VERIFIER, "drafter"),
    )
    for name, limits in agreements.items():
        agreed = agreed_of(dict(limits))
        version = int(limits["version"])
        every = tuple(frames_of(version))
        for shown, receiver, sender in receivers:
            largest = messages.bounds(limits, sender)
            material = tuple(piece for piece in every if TYPES[piece.type] in largest)
            for sealed in (False, True):
                yield Context(
                    f"{name}, read by {shown}{', sealed' if sealed else ''}",
                    version,
                    limits,
                    largest,
                    agreement.bounds(agreed, receiver=receiver),
                    agreed,
                    sealed,
                    material,
                )


ERROR: Fields = {"session": 7, "generation": 1, "round": 2, "code": 97, "field": "base"}


def frames_of(version: int) -> Iterator[Piece]:
    """Every message in every form, and shards of replies."""
    for vector in good.good():
        if vector["version"] == version and vector["limits"] is not None:
            yield from cut(bytes.fromhex(vector["bytes"])) if not vector.get("refused") else ()
    if version == 2:
        yield from shards()
        for vector in chain(mirrored.good_steps(), states.good_steps()):
            yield from cut(bytes.fromhex(vector["bytes"]))
    yield Piece(version, MessageType.ERROR, write_fields("ERROR", ERROR))


def shards() -> Iterator[Piece]:
    """Both halves of a reply in two shards, in both layouts."""
    for index, (begin, end) in enumerate(((0, 3), (3, 6))):
        head = {**good.REPLY, "shard_count": 2, "shard_index": index}
        head |= {"shard_begin": begin, "shard_end": end}
        counts = good.COUNTS[begin:end]
        for layout, support in ((good.SPARSE, 3), (good.DENSE, 3)):
            rows = [messages.write_row(3 + i, 1, counts, layout, support) for i in range(2)]
            payload = messages.write_reply({**head, "layout": layout, "support": support}, rows)
            yield Piece(2, MessageType.REPLY, payload)


# Two readers -------------------------------------------------------------------------------------


def by_oracle(data: bytes, context: Context) -> Reading:
    """The specification's reading."""
    found: list[Vector] = []
    mac_of = (lambda n, frame: keys.frame_mac(SEAL, n, frame)) if context.sealed else None
    try:
        for frame in read_frames(data, context.version, context.largest, mac_of):
            message = messages.read_message(frame, context.limits)
            item: Vector = {"type": frame.type, "fields": good.shown(frame.type, message)}
            if frame.type == "REPLY" and context.limits is not None:
                item |= good.judged(message, context.limits)
            found.append(item)
    except Refused as refusal:
        return Reading(found, refusal.code)
    return Reading(found, None)


def reader_of(context: Context) -> FrameReader:
    """A reader of the wire that stands where the context says."""
    reader = FrameReader(context.bounds)
    if context.sealed:
        reader.open_with(Sealer(SEAL).opens)
    return reader


def by_wire(data: bytes, context: Context) -> Reading:
    """The wire's reading of the bytes in one piece; what it decodes it must encode again."""
    found: list[Vector] = []
    reader = reader_of(context)
    capacity = reader.capacity
    try:
        for frame in reader.feed(data):
            found.append(read_frame(frame, context.agreed))
        reader.finish()
    except ProtocolError as error:
        return Reading(found, error.code.name)
    if reader.capacity != capacity:
        raise Disagreement(f"the buffer grew from {capacity} to {reader.capacity} bytes")
    return Reading(found, None)


def outline(pieces: Sequence[bytes], context: Context) -> Outline:
    """Types and payloads of the messages of a stream in pieces, and the refusal."""
    found: list[tuple[str, bytes]] = []
    reader = reader_of(context)
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                payload = bytes(frame.payload)
                codec.decode(frame.type, frame.version, frame.payload, context.agreed)
                found.append((frame.type.name, payload))
        reader.finish()
    except ProtocolError as error:
        return found, error.code.name
    return found, None


def check(data: bytes, context: Context, split: Sequence[bytes]) -> str:
    """Read the bytes both ways and in three splits; returns the outcome in a word.

    Raises Disagreement, or whatever a reader raised that it must not.
    """
    oracles, wires = by_oracle(data, context), by_wire(data, context)
    if oracles != wires:
        raise Disagreement(f"{context.name}\noracle: {oracles}\nwire:   {wires}")
    whole = outline([data], context)
    if whole[1] != wires.refused or [name for name, _ in whole[0]] != [
        item["type"] for item in wires.messages
    ]:
        raise Disagreement(f"{context.name}: read again, it is {whole}, not {wires}")
    bytewise = outline([data[i : i + 1] for i in range(len(data))], context)
    for name, other in (("byte by byte", bytewise), ("split", outline(split, context))):
        if other != whole:
            raise Disagreement(f"{context.name}, {name}: {other}\nwhole: {whole}")
    check_hellos(data, context)
    if wires.refused is not None:
        return wires.refused
    lost = next((item["dropped"] for item in wires.messages if "dropped" in item), None)
    return "read" if lost is None else f"read, proposal dropped: {lost}"


def check_hellos(data: bytes, context: Context) -> None:
    """Where a HELLO has come, hold what each side agrees to against the oracle (P7, P8)."""
    if context.limits is not None or MessageType.HELLO not in context.bounds.payload:
        return
    one = good.HELLO_V1 if context.version == 1 else states.FUSING
    other = good.DRAFTER_V1 if context.version == 1 else states.FUSABLE
    for kind, payload in outline([data], context)[0]:
        if kind == "HELLO":
            theirs, tail = read_fields("HELLO", payload)
            messages.check_states(theirs, tail)
            for verifier, drafter, mine in ((theirs, other, other), (one, theirs, one)):
                check_agreement(verifier, drafter, mine, context.version)


def check_agreement(verifier: Fields, drafter: Fields, mine: Fields, version: int) -> None:
    """Both agree on the same numbers, or refuse the same field; ``mine`` is one of the two.

    A verifier refuses an answer that raises what it offered as well, which the oracle leaves out.
    """
    hellos = [hello_of(messages.write_hello(each).hex(), version) for each in (verifier, drafter)]
    if mine is verifier:
        hellos.reverse()
    theirs, ours = hellos
    raised = ours.role is Role.VERIFIER and theirs.role is Role.DRAFTER
    due: object
    try:
        limits = agree(verifier, drafter)
        due = {name: limits[name] for name in NUMBERS}
    except Refused as refusal:
        due = refusal.field
    found: object
    try:
        agreed = agreement.agree(ours, theirs)
        found = {name: int(getattr(agreed, name)) for name in NUMBERS}
    except ProtocolError as error:
        if raised and isinstance(due, dict) and error.code is ProtocolErrorCode.HELLO_REFUSED:
            return
        found = error.field
    if found != due and not (raised and isinstance(found, str)):
        raise Disagreement(f"agreement of {verifier} and {drafter}: {found}, not {due}")


# Cases -------------------------------------------------------------------------------------------


def sealed_stream(pieces: Sequence[Piece]) -> bytes:
    """Frames with the MAC behind each, unless a frame has its own."""
    data = bytearray()
    for number, piece in enumerate(pieces):
        frame = piece.written()
        data += frame
        data += keys.frame_mac(SEAL, number, frame) if piece.mac is None else piece.mac
    return bytes(data)


def case(random: Random, places: Sequence[Context]) -> tuple[bytes, Context]:
    """One stream with one mutated frame, behind and before others now and then."""
    context = random.choice(places)
    material = context.material
    changed = random.choice(material)
    replies = [piece for piece in material if piece.type == MessageType.REPLY]
    if replies and random.random() < 0.4:
        changed = random.choice(replies)
    pieces = [mutated_piece(random, changed)]
    if random.random() < 0.2:
        pieces.insert(0, random.choice(material))
    if random.random() < 0.2:
        pieces.append(random.choice(material))
    if random.random() < 0.02 and context.limits is not None:
        foreign = random.choice(places).material
        pieces.append(random.choice(foreign))
    data = (
        sealed_stream(pieces)
        if context.sealed
        else b"".join(piece.written() + (piece.mac or b"") for piece in pieces)
    )
    return mutated_bytes(random, data), context


def run_case(random: Random, places: Sequence[Context]) -> str:
    """Make a case and check it."""
    data, context = case(random, places)
    return check(data, context, random_split(random, data))


__all__ = ["Context", "Disagreement", "case", "check", "contexts", "run_case"]
