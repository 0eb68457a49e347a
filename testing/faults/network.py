"""Faults of the network, and of a peer whose frames are wrong: what each does to a frame.

A fault is a list of variants for a state (most have one; "each field" has one a field), or the
reason why it cannot strike there.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from draftwire.errors import ProtocolErrorCode
from draftwire.wire import codec
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import Complete, ErrorMessage
from draftwire.wire.registry import TOTAL, Layout, MessageType, Status, WireVersion
from testing.faults import frames
from testing.faults.play import play
from testing.faults.requests import long_request
from testing.faults.scene import BETWEEN, DEADLINE, Moment, Scene, Strike
from testing.faults.world import Arrivals, Way

Variants = list[tuple[str, Strike]]
Applies = Callable[[Moment, WireVersion], "Variants | str"]

LATE: Final = 1.5 * DEADLINE
NOTHING_UNDER_WAY: Final = "no frame is under way in this state"
NO_REPLY_YET: Final = "no reply was made yet that could be wrong"
NO_Q: Final = "v1 carries no q"


@dataclass(frozen=True)
class Fault:
    """One row of the matrix."""

    name: str
    applies: Applies
    again: bool = False  # whether another request follows in the same slot
    pinned: bool = False  # whether the request is given up when it was struck
    tokens: int = 40  # of the request
    together: int = 1  # requests that are asked in one go
    same_q: bool = True  # whether a round that is not lost has the q that it would have had


def of_frames(strike: Callable[[Scene, bytes], Arrivals], why: str = NOTHING_UNDER_WAY) -> Applies:
    """Return where a fault of one frame strikes: wherever one is under way."""

    def strike_it(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        return strike(scene, frame)

    return lambda moment, version: why if moment in BETWEEN else [("", strike_it)]


def everywhere(strike: Strike) -> Applies:
    """Return where a fault that needs no frame strikes: in every state."""
    return lambda moment, version: [("", strike)]


# whole frames


def drop(scene: Scene, frame: bytes) -> Arrivals:
    return []


def twice(scene: Scene, frame: bytes | None) -> Arrivals:
    """The frame once more; where nothing is under way, the latest reply once more."""
    if frame is not None:
        return [(0.0, frame), (0.0, frame)]
    return [(0.0, scene.last[MessageType.REPLY]), (0.0, scene.last[MessageType.COMPLETE])]


def overtaken(moment: Moment, version: WireVersion) -> Variants | str:
    if moment in BETWEEN:
        return NOTHING_UNDER_WAY
    if moment not in (Moment.OPENING, Moment.ASKED, Moment.REPLYING, Moment.REPLIED):
        return "nothing follows that could overtake it"

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        scene.held[scene.way] = frame
        return []

    return [("", strike)]


def late(seconds: float) -> Callable[[Scene, bytes], Arrivals]:
    return lambda scene, frame: [(seconds, frame)]


def by_byte(seconds: float) -> Callable[[Scene, bytes], Arrivals]:
    """One byte at a time, the last one after so many seconds."""
    return lambda scene, frame: [
        (seconds * (at + 1) / len(frame), frame[at : at + 1]) for at in range(len(frame))
    ]


def into_reused_slot(moment: Moment, version: WireVersion) -> Variants | str:
    if moment not in (Moment.OPENING, Moment.ASKED, Moment.REPLYING, Moment.REPLIED):
        return "no reply is due that could come late"
    return [("", lambda scene, frame: [(LATE, frame or b"")])]


def garbage(scene: Scene, frame: bytes | None) -> Arrivals:
    """Bytes that are no frame, in the middle of the stream."""
    noise = random.Random(1).randbytes(40)
    return [(0.0, noise), *([] if frame is None else [(0.0, frame)])]


# damage


def _names(moment: Moment, version: WireVersion) -> Iterator[str]:
    """The fields of the frame that a moment is about, by a frame that the moment really has."""
    seen: list[bytes] = []

    def look(scene: Scene, frame: bytes | None) -> Arrivals:
        seen.append(scene.last[MessageType.REPLY] if frame is None else frame)
        return [] if frame is None else [(0.0, frame)]

    play(Scene(moment, version, long_request(version), look))
    return (part.name for part in frames.parts_of(seen[0]))


def each_bit(moment: Moment, version: WireVersion) -> Variants | str:
    """A bit of each field, checksums as they were: what a network does."""

    def strike_of(name: str) -> Strike:
        def strike(scene: Scene, frame: bytes | None) -> Arrivals:
            frame = scene.last[MessageType.REPLY] if frame is None else frame
            return [(0.0, frames.flipped(frame, name))]

        return strike

    return [(name, strike_of(name)) for name in _names(moment, version)]


def each_field(moment: Moment, version: WireVersion) -> Variants | str:
    """A bit of each field of the payload, all checksums right: what a faulty peer does."""
    if moment is Moment.PROVING:
        return "a wrong nonce is a wrong proof: see 'key wrong'"

    def strike_of(name: str) -> Strike:
        def strike(scene: Scene, frame: bytes | None) -> Arrivals:
            frame = scene.last[MessageType.REPLY] if frame is None else frame
            mend = frames.sums_repaired if name.endswith(" checksum") else frames.repaired
            return [(0.0, consistent(scene, mend(frames.flipped(frame, name))))]

        return strike

    names = set(frames.HEADER_NAMES) | {frames.TRAILER_NAME}
    return [(name, strike_of(name)) for name in _names(moment, version) if name not in names]


def consistent(scene: Scene, frame: bytes) -> bytes:
    """Return a REPLY, and let the COMPLETE that follows it name its checksum."""
    if frames.kind_of(frame) is not MessageType.REPLY or scene.moment is not Moment.REPLYING:
        return frame
    total = int.from_bytes(frame[-4:], "little")

    def after(following: bytes) -> Arrivals:
        scene.after = None
        if frames.kind_of(following) is MessageType.COMPLETE:
            following = frames.changed(following, {"reply_checksum": total})
        return [(0.0, following)]

    scene.after = after
    return frame


def cut_at_each(moment: Moment, version: WireVersion) -> Variants | str:
    """The stream ends at each boundary inside the frame."""
    if moment in BETWEEN:
        return NOTHING_UNDER_WAY

    def strike_of(name: str) -> Strike:
        def strike(scene: Scene, frame: bytes | None) -> Arrivals:
            assert frame is not None
            line = scene.line
            assert line is not None
            begin = frames.part(frame, name).begin
            if begin:
                line.put(scene.way, scene.world.clock.now, frame[:begin])
            if scene.way is Way.THERE:  # the drafter reads the end of the stream behind it
                scene.world.serve(line)
            scene.world.hang_up(line)
            return []

        return strike

    return [(name, strike_of(name)) for name in _names(moment, version)]


def rest_lost_at_each(moment: Moment, version: WireVersion) -> Variants | str:
    """What follows each boundary inside the frame is lost, and the stream goes on."""
    if moment in BETWEEN:
        return NOTHING_UNDER_WAY

    def strike_of(name: str) -> Strike:
        def strike(scene: Scene, frame: bytes | None) -> Arrivals:
            assert frame is not None
            return [(0.0, frame[: frames.part(frame, name).begin])]

        return strike

    return [(name, strike_of(name)) for name in list(_names(moment, version))[1:]]


# a peer that answers wrongly


def wrong(**difference: int) -> Applies:
    """Fields of the answer are another number; of a question too, where that is under way."""

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        frame = scene.last[MessageType.REPLY] if frame is None else frame
        values = {
            name: (frames.value(frame, name) + by) % (1 << 32) for name, by in difference.items()
        }
        return [(0.0, consistent(scene, frames.changed(frame, values)))]

    def applies(moment: Moment, version: WireVersion) -> Variants | str:
        if moment in (Moment.PROVING, Moment.GREETING, Moment.GREETED, Moment.AGREED):
            return NO_REPLY_YET
        if moment is Moment.ENDING and not set(difference) <= {"session", "generation"}:
            return "CANCEL has no such field"
        if moment is Moment.OPENING and min(difference.values()) < 0:
            return "there is none before the first"
        return [("", strike)]

    return applies


def of_q(damage: Callable[[bytearray], None]) -> Applies:
    """Something about the first row of the reply is wrong."""

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        made = bytearray(frame or b"")
        damage(made)
        return [(0.0, consistent(scene, frames.repaired(bytes(made))))]

    def applies(moment: Moment, version: WireVersion) -> Variants | str:
        if moment is not Moment.REPLYING:
            return "no q is under way in this state"
        return NO_Q if version is WireVersion.V1 else [("", strike)]

    return applies


def one_ticket_more(frame: bytearray) -> None:
    at = frames.part(bytes(frame), "row 0 q").begin
    (q,) = struct.unpack_from("<f", frame, at)
    struct.pack_into("<f", frame, at, q + 1 / TOTAL)


def no_entries(frame: bytearray) -> None:
    place = frames.part(bytes(frame), "row 0 entries")
    struct.pack_into("<I", frame, place.begin, 0)


def another_token(moment: Moment, version: WireVersion) -> Variants | str:
    """The reply names another token than the one that its words draw from its q."""
    if moment is not Moment.REPLYING:
        return "no token is under way in this state"

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        drawn = frames.value(frame, "row 0 token")
        others = [token for token in _supported(frame) if token != drawn]
        token = others[0] if others else (drawn + 1) % scene.size.vocab_size
        return [(0.0, consistent(scene, frames.changed(frame, {"row 0 token": token})))]

    return [("", strike)]


def _supported(frame: bytes) -> list[int]:
    """The ids that the first row of a sparse reply gives tickets; of another layout, none."""
    if frames.value(frame, "layout") != Layout.SPARSE:
        return []
    begin, entries = frames.part(frame, "row 0 ids").begin, frames.value(frame, "row 0 entries")
    return list(struct.unpack_from(f"<{entries}i", frame, begin))


def said_instead(message: ErrorMessage | Status) -> Applies:
    """The drafter says something else in place of its reply: an ERROR, or why there is none."""

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        frame = scene.last[MessageType.REPLY] if frame is None else frame
        generation, round_ = frames.value(frame, "generation"), frames.value(frame, "round")
        session = frames.value(frame, "session")
        if isinstance(message, Status):
            said: ErrorMessage | Complete = Complete(
                session=session,
                slot=frames.value(frame, "slot"),
                status=message,
                generation=generation,
                round=round_,
                first_position=frames.value(frame, "first_position"),
                prefix_digest=_bytes(frame, "prefix_digest"),
                context_version=frames.value(frame, "context_version"),
                reply_bytes=0,
                reply_checksum=0,
            )
        elif message.session:
            said = ErrorMessage(message.code, session, generation, round_)
        else:
            said = message
        scene.after = _swallow(scene)
        kind = codec.message_type(said)
        return [(0.0, frame_bytes(encode_frame(scene.version, kind, *codec.encode(said))))]

    def applies(moment: Moment, version: WireVersion) -> Variants | str:
        return [("", strike)] if moment is Moment.REPLYING else "no reply is under way"

    return applies


def _swallow(scene: Scene) -> Callable[[bytes], Arrivals]:
    """The COMPLETE of the reply that was replaced does not come either."""

    def after(frame: bytes) -> Arrivals:
        scene.after = None
        return [] if frames.kind_of(frame) is MessageType.COMPLETE else [(0.0, frame)]

    return after


def _bytes(frame: bytes, name: str) -> bytes:
    place = frames.part(frame, name)
    return frame[place.begin : place.begin + place.size]


FAULTS: Final = (
    Fault("dropped", of_frames(drop)),
    Fault("duplicated", everywhere(twice)),
    Fault("reordered", overtaken),
    Fault("delayed within the deadline", of_frames(late(0.5 * DEADLINE))),
    Fault("delayed past the deadline", of_frames(late(LATE))),
    Fault("late into a reused slot", into_reused_slot, again=True, pinned=True),
    Fault("slow writer, a byte at a time, in time", of_frames(by_byte(0.5 * DEADLINE))),
    Fault("slow writer, a byte at a time, too late", of_frames(by_byte(LATE))),
    Fault("a bit of each field flipped", each_bit),
    Fault("a bit of each field, checksums right", each_field),
    Fault("stream ends at each boundary", cut_at_each),
    Fault("rest lost at each boundary", rest_lost_at_each),
    Fault("bytes that are no frame", everywhere(garbage)),
    Fault("wrong session", wrong(session=7)),
    Fault("wrong generation, ahead", wrong(generation=1)),
    Fault("wrong generation, far ahead", wrong(generation=7), tokens=100),
    Fault("wrong round, ahead", wrong(round=7)),
    Fault("wrong round, behind", wrong(round=-1)),
    Fault("wrong position", wrong(first_position=1)),
    Fault("wrong digest", wrong(prefix_digest=1)),
    Fault("wrong slot", wrong(slot=1)),
    Fault("q one ticket off", of_q(one_ticket_more)),
    Fault("one q missing", of_q(no_entries)),
    Fault("token not drawn from its q", another_token),
    Fault("ERROR: prefix unknown", said_instead(ErrorMessage(ProtocolErrorCode.UNKNOWN_PREFIX, 1))),
    Fault("ERROR about the connection", said_instead(ErrorMessage(ProtocolErrorCode.BAD_FIELD))),
    *(
        Fault(f"declined: {status.name}", said_instead(status))
        for status in Status
        if status is not Status.OK
    ),
)
"""Rows of the matrix that frames alone make."""
