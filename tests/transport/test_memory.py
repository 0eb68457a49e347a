"""The faulty pair does exactly what its faults say, and the same again under the same seed."""

from __future__ import annotations

import pytest

from testing.harness.memory import Fault, Faults, MemoryEnd, MemoryPair

CHUNKS = [bytes([number]) * (number + 3) for number in range(6)]


def arrivals(end: MemoryEnd, now: float) -> list[bytes]:
    found = []
    while (chunk := end.receive(now)) not in (None, b""):
        assert chunk is not None
        found.append(chunk)
    return found


def sent_with(*faults: Fault | None, now: float = 0.0) -> MemoryPair:
    pair = MemoryPair(Faults(longest=2.0))
    pair.verifier.plan(*faults)
    for chunk in CHUNKS:
        if pair.connected:
            pair.verifier.send([chunk[:1], memoryview(chunk)[1:]], now)
    return pair


def test_without_faults_chunks_arrive_whole_and_in_order_both_ways():
    pair = sent_with()
    pair.drafter.send([b"back"], 0.0)
    assert arrivals(pair.drafter, 0.0) == CHUNKS
    assert arrivals(pair.verifier, 0.0) == [b"back"]
    assert pair.drafter.receive(9.0) is None
    assert pair.due() is None


def test_what_is_sent_is_copied():
    pair = MemoryPair()
    buffer = bytearray(b"abc")
    pair.verifier.send([memoryview(buffer)], 0.0)
    buffer[:] = b"xyz"
    assert pair.drafter.receive(0.0) == b"abc"


def test_latency_is_kept():
    pair = MemoryPair(Faults(latency=0.5))
    pair.verifier.send([b"abc"], 1.0)
    assert pair.drafter.receive(1.4) is None
    assert pair.due() == 1.5
    assert pair.drafter.receive(1.5) == b"abc"


def test_lose():
    assert arrivals(sent_with(None, Fault.LOSE).drafter, 0.0) == [CHUNKS[0], *CHUNKS[2:]]


def test_duplicate():
    found = arrivals(sent_with(None, Fault.DUPLICATE).drafter, 0.0)
    assert found == [*CHUNKS[:2], *CHUNKS[1:]]


def test_split():
    found = arrivals(sent_with(Fault.SPLIT).drafter, 0.0)
    assert len(found) > len(CHUNKS)
    assert b"".join(found) == b"".join(CHUNKS)


def test_reorder_lets_the_next_chunk_overtake():
    found = arrivals(sent_with(Fault.REORDER).drafter, 0.0)
    assert found == [CHUNKS[1], CHUNKS[0], *CHUNKS[2:]]


def test_reorder_without_a_next_chunk_goes_on_after_the_longest_delay():
    pair = MemoryPair(Faults(longest=2.0))
    pair.verifier.plan(Fault.REORDER)
    pair.verifier.send([b"abc"], 1.0)
    assert pair.drafter.receive(2.9) is None
    assert pair.due() == 3.0
    assert pair.drafter.receive(3.0) == b"abc"


def test_two_reorders_in_a_row_lose_nothing():
    found = arrivals(sent_with(Fault.REORDER, Fault.REORDER).drafter, 0.0)
    assert sorted(found) == sorted(CHUNKS)


def test_delay_holds_what_follows():
    pair = sent_with(None, Fault.DELAY)
    assert arrivals(pair.drafter, 0.0) == CHUNKS[:1]
    due = pair.due()
    assert due is not None and 0.0 < due <= 2.0
    assert arrivals(pair.drafter, due) == CHUNKS[1:]


def test_corrupt_flips_one_bit():
    found = arrivals(sent_with(Fault.CORRUPT).drafter, 0.0)
    assert found[1:] == CHUNKS[1:]
    flipped = int.from_bytes(found[0], "big") ^ int.from_bytes(CHUNKS[0], "big")
    assert flipped.bit_count() == 1


def test_disconnect_ends_both_directions_after_what_was_under_way():
    pair = MemoryPair()
    pair.verifier.plan(None, Fault.DISCONNECT)
    pair.verifier.send([b"one"], 0.0)
    pair.verifier.send([b"two"], 0.0)
    with pytest.raises(ConnectionError):
        pair.drafter.send([b"back"], 0.0)
    assert pair.drafter.receive(0.0) == b"one"
    assert pair.drafter.receive(0.0) == b""
    assert pair.verifier.receive(0.0) == b""


def test_close_delivers_what_is_under_way():
    pair = MemoryPair(Faults(latency=1.0))
    pair.verifier.send([b"last"], 0.0)
    pair.verifier.close()
    assert pair.drafter.receive(0.5) is None
    assert pair.drafter.receive(1.0) == b"last"
    assert pair.drafter.receive(1.0) == b""


def run(seed: int) -> tuple[list[bytes], dict[Fault, int]]:
    each = 1 / 8
    faults = Faults(
        lose=each, split=each, duplicate=each, reorder=each, delay=each, corrupt=each, longest=3.0
    )
    pair = MemoryPair(faults, seed)
    found = []
    for step in range(200):
        pair.verifier.send([step.to_bytes(4, "big")], float(step))
        found += arrivals(pair.drafter, float(step))
    return found + arrivals(pair.drafter, 1000.0), dict(pair.happened)


def test_the_same_seed_gives_the_same_arrivals():
    assert run(5) == run(5)
    assert run(5)[0] != run(6)[0]


def test_every_seeded_fault_happens():
    assert set(run(5)[1]) == set(Fault) - {Fault.DISCONNECT}


def test_heal_stops_faults():
    pair = MemoryPair(Faults(lose=1.0))
    pair.verifier.plan(Fault.LOSE)
    pair.heal()
    pair.verifier.send([b"abc"], 0.0)
    assert pair.drafter.receive(0.0) == b"abc"
