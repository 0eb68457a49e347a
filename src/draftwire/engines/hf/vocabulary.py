"""What the ids of two tokenizers mean, and which of them mean the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from draftwire.errors import ModelError
from draftwire.wire.registry import MAX_VOCABULARY

Meaning: TypeAlias = tuple[str, bytes]
"""What an id stands for: ("text", its bytes), ("special", its content), or a piece of a kind that
only tokenizers of that kind share ("WordPiece", "WordLevel")."""

ROLES: Final = ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id")
_SHOWN: Final = 5  # differences


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The meaning of every id of a tokenizer below ``size``; ids that mean nothing are left out."""

    size: int
    meanings: Mapping[int, Meaning]
    roles: Mapping[str, int]

    @classmethod
    def of(cls, tokenizer: Any, size: int | None = None) -> Vocabulary:
        """Read a tokenizer. size: V where the model's is smaller or larger than the tokenizer's."""
        known = {int(index): token for token, index in tokenizer.get_vocab().items()}
        if not known:
            raise ModelError("the tokenizer knows no token")
        size = 1 + max(known) if size is None else size
        if not 1 <= size <= MAX_VOCABULARY:
            raise ModelError(f"a vocabulary of {size} ids; 1 to {MAX_VOCABULARY} are allowed")
        meaning = _reader(tokenizer)
        meanings = {index: meaning(known[index]) for index in sorted(known) if index < size}
        for index, token in sorted(tokenizer.added_tokens_decoder.items()):
            if index < size:
                kind = "special" if token.special else "text"
                meanings[index] = (kind, token.content.encode())
        named = {name: getattr(tokenizer, name, None) for name in ROLES}
        roles = {name: index for name, index in named.items() if index in meanings}
        return cls(size, meanings, roles)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two vocabularies share.

    equal: ids that mean the same on both sides. different: ids that do not, or that only one side
    knows. shared: of each of the target's ids that has one, the drafter's id of equal meaning.
    first: the first differences, in words.
    """

    equal: int
    different: int
    shared: Mapping[int, int]
    target_size: int
    first: tuple[str, ...]

    def __str__(self) -> str:
        """Return the numbers and the first differences in a line."""
        numbers = (
            f"{self.equal:,} ids mean the same on both sides, {self.different:,} do not;"
            f" {len(self.shared):,} of the target's {self.target_size:,} have a partner of equal"
            " text (--vocabulary shared)"
        )
        return f"{numbers}; first differences: {'; '.join(self.first)}" if self.first else numbers


def compare(target: Vocabulary, drafter: Vocabulary) -> Comparison:
    """Return what a target's vocabulary and a drafter's share: by meaning, then special roles."""
    own: dict[Meaning, int] = {}
    for index in sorted(drafter.meanings):
        own.setdefault(drafter.meanings[index], index)
    shared: dict[int, int] = {}
    taken: set[int] = set()
    for index in sorted(target.meanings):
        partner = own.get(target.meanings[index])
        if partner is not None and partner not in taken:
            shared[index] = partner
            taken.add(partner)
    for role, index in target.roles.items():
        partner = drafter.roles.get(role)
        if partner is not None and index not in shared and partner not in taken:
            shared[index] = partner
            taken.add(partner)
    ids = sorted(target.meanings.keys() | drafter.meanings.keys())
    apart = [each for each in ids if target.meanings.get(each) != drafter.meanings.get(each)]
    first = tuple(
        f"{each} is {_shown(target, each)} in the target, {_shown(drafter, each)} in the drafter"
        for each in apart[:_SHOWN]
    )
    return Comparison(len(ids) - len(apart), len(apart), shared, target.size, first)


class Spelling:
    """Writes an id of one vocabulary in the ids of another, its text token by token."""

    def __init__(self, target: Vocabulary, drafter: Vocabulary, tokenizer: Any) -> None:
        """Take both sides and the drafter's tokenizer."""
        self._target = target
        self._tokenizer = tokenizer
        self._meanings = drafter.meanings
        self._ids = {
            content: index
            for index, (kind, content) in sorted(drafter.meanings.items(), reverse=True)
            if kind == "text" and content
        }
        self._longest = max(map(len, self._ids), default=0)
        ordinary = min(
            (i for i, (kind, _) in drafter.meanings.items() if kind != "special"), default=0
        )
        self._unknown = drafter.roles.get("unk_token_id", ordinary)

    def __call__(self, index: int) -> list[int]:
        """Return at least one id of the drafter for an id of the target."""
        kind, content = self._target.meanings.get(index, ("", b""))
        if kind != "text":
            return [self._unknown]
        return self._as_encoded(content) or list(self._greedy(content)) or [self._unknown]

    def _as_encoded(self, content: bytes) -> list[int] | None:
        """Return the tokenizer's own ids of a text where they spell it byte by byte."""
        try:
            ids = self._tokenizer.encode(content.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            return None
        meanings = [self._meanings.get(each, ("", b"")) for each in ids]
        exact = all(kind == "text" for kind, _ in meanings)
        return list(ids) if exact and b"".join(each for _, each in meanings) == content else None

    def _greedy(self, content: bytes) -> Iterator[int]:
        """Yield the longest token at each place; bytes that no token begins with are left out."""
        at = 0
        while at < len(content):
            for length in range(min(self._longest, len(content) - at), 0, -1):
                found = self._ids.get(content[at : at + length])
                if found is not None:
                    yield found
                    break
            at += length if found is not None else 1


def _reader(tokenizer: Any) -> Any:
    """Return the function from a token as its tokenizer writes it to what it means."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {}
    kinds = set(_types([content.get(part) for part in ("decoder", "pre_tokenizer")]))
    written = json.dumps(
        [content.get(part) for part in ("decoder", "normalizer")], ensure_ascii=False
    )
    model = str((content.get("model") or {}).get("type", ""))
    if "ByteLevel" in kinds:
        return _byte_level
    if "Metaspace" in kinds or "▁" in written:
        return _metaspace
    if model in ("WordPiece", "WordLevel"):
        return lambda token: (model, token.encode())
    return lambda token: ("text", token.encode())


def _types(value: Any) -> Iterator[str]:
    """Yield every "type" in nested parts of a tokenizer's file."""
    if isinstance(value, Mapping):
        if isinstance(value.get("type"), str):
            yield value["type"]
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _types(each)


def _bytes_of_characters() -> dict[str, int]:
    """Return the bytes that the characters of byte-level tokenizers stand for (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    moved = {chr(256 + at): byte for at, byte in enumerate(rest)}
    return {chr(byte): byte for byte in plain} | moved


_BYTES: Final = _bytes_of_characters()


def _byte_level(token: str) -> Meaning:
    try:
        return "text", bytes(_BYTES[each] for each in token)
    except KeyError:
        return "text", token.encode()


def _metaspace(token: str) -> Meaning:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return "text", bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return "text", token.replace("▁", " ").encode()


def _shown(vocabulary: Vocabulary, index: int) -> str:
    meaning = vocabulary.meanings.get(index)
    if meaning is None:
        return "nothing"
    kind, content = meaning
    text = repr(content.decode(errors="backslashreplace"))
    return f"{text} (special)" if kind == "special" else text
