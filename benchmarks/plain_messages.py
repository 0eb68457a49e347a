"""The exchange of a round as plain msgspec messages over pyzmq: what one would write instead.

A DEALER asks, a ROUTER in another process answers with the same values as a REPLY of sparse q:
tokens, and the ids and probabilities of each position's support, as arrays. Nothing is drawn,
checked against the question, or audited.
"""

from __future__ import annotations

from types import TracebackType

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray


class Ask(msgspec.Struct):
    """What a STEP says: where the round stands, the new tokens, and how to draft."""

    session: int
    generation: int
    round: int
    position: int
    accepted: int
    tokens: list[int]
    depth: int
    support: int
    temperature: float
    proposal_key: int


class Answer(msgspec.Struct):
    """What a REPLY says; ids and probabilities: (depth, support) int32 and binary32, row by row."""

    session: int
    generation: int
    round: int
    position: int
    tokens: list[int]
    ids: bytes
    probabilities: bytes


class PlainRounds:
    """Asks, a round a call; returns the arrays of the answer."""

    def __init__(self, address: str, depth: int, support: int) -> None:
        """address: HOST:PORT of :func:`answer_rounds`."""
        self._shape = depth, support
        self._round = 0
        self._encode, self._decode = (
            msgspec.msgpack.Encoder().encode,
            msgspec.msgpack.Decoder(Answer).decode,
        )
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{address}")

    def __call__(self) -> tuple[list[int], NDArray[np.int32], NDArray[np.float32]]:
        """Run one round; returns tokens, ids and probabilities."""
        self._round += 1
        depth, support = self._shape
        ask = Ask(1, 1, self._round, 3 * self._round, 2, [7], depth, support, 1.0, 99)
        self._socket.send(self._encode(ask))
        answer = self._decode(self._socket.recv())
        if answer.round != self._round:
            raise SystemExit("an answer to another round")
        ids = np.frombuffer(answer.ids, np.int32).reshape(self._shape)
        probabilities = np.frombuffer(answer.probabilities, np.float32).reshape(self._shape)
        return answer.tokens, ids, probabilities

    def __enter__(self) -> PlainRounds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close(linger=0)
        self._context.term()


def answer_rounds(ids: NDArray[np.int32], probabilities: NDArray[np.float32]) -> None:
    """Answer for ever with these rows; prints where it listens. Both: (depth, support)."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Ask).decode
    socket = zmq.Context().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"127.0.0.1:{port}", flush=True)
    while True:
        peer, data = socket.recv_multipart()
        ask = decode(data)
        first = [int(row[0]) for row in ids]
        answer = Answer(
            ask.session,
            ask.generation,
            ask.round,
            ask.position,
            first,
            ids.tobytes(),
            probabilities.tobytes(),
        )
        socket.send_multipart([peer, encode(answer)])
