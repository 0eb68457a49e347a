"""Two ends in one process, for tests: bytes arrive whole, or as badly as asked for; no clock.

What one ``send`` is given travels as one chunk. Faults hit chunk by chunk: planned ones first, then
seeded ones by their probabilities. The same seed and the same calls give the same arrivals.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from draftwire.transport.channel import Part


class Fault(Enum):
    """What can happen to a chunk; the value is its meaning."""

    LOSE = "it never arrives"
    SPLIT = "it arrives in pieces"
    DUPLICATE = "it arrives twice"
    REORDER = "the next chunk overtakes it"
    DELAY = "it arrives late, and so does everything after it"
    CORRUPT = "one of its bits is flipped"
    DISCONNECT = "it does not arrive, and the connection ends in both directions"


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of each fault for one chunk, at most one fault a chunk; they sum to 1 or less.

    longest: seconds of the longest delay, and after which a chunk that waits to be overtaken goes
    on anyway. latency: seconds that every chunk takes.
    """

    lose: float = 0.0
    split: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    corrupt: float = 0.0
    disconnect: float = 0.0
    longest: float = 1.0
    latency: float = 0.0

    def draw(self, source: random.Random) -> Fault | None:
        """Return the fault of one chunk, or None."""
        point = source.random()
        for fault in Fault:
            point -= getattr(self, fault.name.lower())
            if point < 0:
                return fault
        return None


@dataclass(slots=True)
class _Chunk:
    data: bytes
    due: float


class _Way:
    """One direction: chunks in the order in which they will arrive."""

    def __init__(self, faults: Faults, source: random.Random) -> None:
        self.faults = faults
        self.source = source
        self.planned: deque[Fault | None] = deque()
        self.happened: Counter[Fault] = Counter()
        self._queue: deque[_Chunk] = deque()
        self._held: _Chunk | None = None  # waits until the next chunk has overtaken it

    def send(self, data: bytes, now: float) -> bool:
        """Put a chunk on its way; returns False if it ends the connection."""
        fault = self.planned.popleft() if self.planned else self.faults.draw(self.source)
        if fault is not None:
            self.happened[fault] += 1
        due = now + self.faults.latency
        if fault is Fault.DISCONNECT:
            return False
        if fault is Fault.LOSE:
            return True
        if fault is Fault.REORDER and self._held is None:
            self._held = _Chunk(data, due + self.faults.longest)
            return True
        for piece, seconds in self._pieces(data, fault):
            self._put(_Chunk(piece, due + seconds))
        self._release(due)
        return True

    def receive(self, now: float) -> bytes | None:
        """Return the next chunk that has arrived, or None."""
        if self._held is not None and self._held.due <= now:
            self._release(self._held.due)
        if self._queue and self._queue[0].due <= now:
            return self._queue.popleft().data
        return None

    def due(self) -> float | None:
        """Return when the next chunk arrives, or None if there is none."""
        chunks = [*list(self._queue)[:1], *([] if self._held is None else [self._held])]
        return min((chunk.due for chunk in chunks), default=None)

    def _pieces(self, data: bytes, fault: Fault | None) -> list[tuple[bytes, float]]:
        """Return what arrives in place of a chunk, and how many seconds late."""
        if fault is Fault.DUPLICATE:
            return [(data, 0.0), (data, 0.0)]
        if fault is Fault.DELAY:
            return [(data, self.source.uniform(0.0, self.faults.longest))]
        if fault is Fault.SPLIT and len(data) > 1:
            cuts = sorted(self.source.randrange(1, len(data)) for _ in range(3))
            edges = [0, *cuts, len(data)]
            return [(data[begin:end], 0.0) for begin, end in pairwise(edges) if begin < end]
        if fault is Fault.CORRUPT and data:
            damaged = bytearray(data)
            damaged[self.source.randrange(len(data))] ^= 1 << self.source.randrange(8)
            return [(bytes(damaged), 0.0)]
        return [(data, 0.0)]

    def _put(self, chunk: _Chunk) -> None:
        """Queue a chunk; in a stream nothing arrives before what is ahead of it."""
        if self._queue:
            chunk.due = max(chunk.due, self._queue[-1].due)
        self._queue.append(chunk)

    def _release(self, due: float) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.due = due
            self._put(held)


class MemoryEnd:
    """One end of a :class:`MemoryPair`."""

    def __init__(self, pair: MemoryPair, outbound: _Way, inbound: _Way) -> None:
        self._pair = pair
        self._outbound = outbound
        self._inbound = inbound

    def send(self, parts: Sequence[Part], now: float) -> None:
        """Send all parts as one chunk, copied here; ConnectionError after the end."""
        if not self._pair.connected:
            raise ConnectionError("the connection has ended")
        data = b"".join(parts)
        if data and not self._outbound.send(data, now):
            self._pair.connected = False

    def receive(self, now: float) -> bytes | None:
        """Return the next chunk that has arrived, or None; b"" when the connection has ended."""
        chunk = self._inbound.receive(now)
        if chunk is None and not self._pair.connected and self._inbound.due() is None:
            return b""
        return chunk

    def plan(self, *faults: Fault | None) -> None:
        """Set the faults of the next chunks that this end sends, in order; None = none."""
        self._outbound.planned.extend(faults)

    def close(self) -> None:
        """End the connection; what is under way still arrives."""
        self._pair.connected = False


class MemoryPair:
    """Two connected ends. seed: decides every seeded fault."""

    def __init__(self, faults: Faults | None = None, seed: int = 0) -> None:
        chosen = Faults() if faults is None else faults
        source = random.Random(seed)
        there, back = _Way(chosen, source), _Way(chosen, source)
        self.connected = True
        self.verifier = MemoryEnd(self, there, back)
        self.drafter = MemoryEnd(self, back, there)
        self.ways = (there, back)

    @property
    def happened(self) -> Counter[Fault]:
        """The faults so far, both directions together."""
        return self.ways[0].happened + self.ways[1].happened

    def heal(self) -> None:
        """From now on nothing happens to a chunk; what is under way stays as it is."""
        for way in self.ways:
            way.faults = Faults(longest=way.faults.longest, latency=way.faults.latency)
            way.planned.clear()

    def due(self) -> float | None:
        """Return when the next chunk arrives anywhere, or None if nothing is under way."""
        return min((due for way in self.ways if (due := way.due()) is not None), default=None)
