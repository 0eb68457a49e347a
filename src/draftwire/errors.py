"""Every exception draftwire raises on purpose, in one tree.

::

    DraftwireError
    ├── ConfigurationError          a flag, a folder, a pair of models or a limit that cannot work
    │   ├── ModelError              a folder that is no model, or a model we cannot use
    │   └── PairMismatchError       target and drafter do not share a tokenizer or vocabulary
    ├── ArithmeticRefusalError      weights, logits or counts that A1-A22 refuse   (carries a code)
    ├── ProtocolError               what a peer sent breaks the protocol           (carries a code)
    │   └── RemoteError             the peer says that *we* broke it               (carries a code)
    ├── ReleasedError               a q is read whose round is over: a bug of the caller
    ├── DrafterUnavailableError     no usable proposal; the round goes on target-only
    └── TransportError              a port in use, an address that cannot be reached

Each has an ``exit_code`` that the command line ends with. What a peer sends raises
:class:`ProtocolError` and nothing else; ``assert`` is only for bugs of our own.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line, for scripts."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIGURATION = 3
    PROTOCOL = 4
    UNAVAILABLE = 5
    ARITHMETIC = 6
    NOT_CONFORMING = 7
    INTERRUPTED = 130


class RefusalCode(IntEnum):
    """Why weights, logits or counts were refused (spec/arithmetic.md); also the status of a row.

    0 is no refusal, so that the statuses of many rows are one array of integers.
    """

    NON_FINITE = 1
    ZERO_MASS = 2
    ZERO_Q = 3
    ZERO_RESIDUAL = 4
    INCONSISTENT_ALLOCATION = 5
    OUT_OF_RANGE = 6
    NEGATIVE_WEIGHT = 7


class DraftwireError(Exception):
    """The root of every error raised on purpose."""

    exit_code = ExitCode.FAILURE


class ConfigurationError(DraftwireError):
    """Something the user asked for cannot work; the message says what to change."""

    exit_code = ExitCode.CONFIGURATION


class ModelError(ConfigurationError):
    """A folder that is no model, or a model that cannot be used here."""


class PairMismatchError(ConfigurationError):
    """Target and drafter disagree; ``field`` names on what."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ArithmeticRefusalError(DraftwireError):
    """A row, a weight or a count that the arithmetic refuses; nothing is clipped or repaired."""

    exit_code = ExitCode.ARITHMETIC

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProtocolErrorCode(IntEnum):
    """Numbers of the ERROR message and of every refusal of a peer's bytes (spec/protocol.md)."""

    # framing
    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_TYPE = 3
    BAD_FLAGS = 4
    BAD_HEADER_CHECKSUM = 5
    BAD_PAYLOAD_CHECKSUM = 6
    FRAME_TOO_LARGE = 7
    BAD_LENGTH = 8
    TRUNCATED = 9
    # fields
    BAD_FIELD = 16
    BAD_PADDING = 17
    LIMIT_EXCEEDED = 18
    # agreement
    HELLO_REFUSED = 32
    UNEXPECTED_MESSAGE = 33
    WRONG_VERSION_FOR_LAYOUT = 34
    AUTHENTICATION_FAILED = 35
    # q, one code for each rejection of the origin
    DUPLICATE_ID = 48
    UNSORTED_SUPPORT = 49
    ID_OUT_OF_RANGE = 50
    MISSING_Q = 51
    NON_FINITE_Q = 52
    NEGATIVE_Q = 53
    NON_DYADIC_Q = 54
    WRONG_MASS = 55
    ZERO_Q_AT_TOKEN = 56
    ZERO_COUNT_ENTRY = 57
    NONZERO_PADDING = 58
    BAD_Q_CHECKSUM = 59
    NEGATIVE_ZERO_Q = 60
    # identity of a reply
    WRONG_SESSION = 80
    WRONG_SLOT = 81
    WRONG_GENERATION = 82
    WRONG_ROUND = 83
    WRONG_POSITION = 84
    WRONG_DIGEST = 85
    WRONG_SIZE = 86
    WRONG_SHARD = 87
    DUPLICATE_ROUND = 88
    STALE = 89
    AUDIT_FAILED = 90
    # state of the peer
    UNKNOWN_SESSION = 96
    UNKNOWN_PREFIX = 97
    COMMIT_MISMATCH = 98
    NO_SLOT = 99
    CONTEXT_LIMIT = 100
    INTERNAL = 101
    SHUTTING_DOWN = 102
    REFUSED_ARITHMETIC = 103


class ProtocolError(DraftwireError):
    """What a peer sent breaks the protocol: ``code`` says how, ``field`` names a field, if any."""

    exit_code = ExitCode.PROTOCOL

    def __init__(self, code: ProtocolErrorCode, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class RemoteError(ProtocolError):
    """The peer answered with an ERROR message: in its eyes, what we sent breaks the protocol."""


class ReleasedError(DraftwireError):
    """A dense q is read after its round was committed or dropped; its memory is another reply's."""


class DrafterUnavailableError(DraftwireError):
    """No usable proposal can be had now; ``reason`` is the counter it is booked under."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransportError(DraftwireError):
    """A port in use, a name that does not resolve, an address that cannot be reached."""

    exit_code = ExitCode.UNAVAILABLE
