"""Settings of every test process."""

import os
from collections.abc import Iterator

import pytest

from draftwire.session.slot_buffers import ReplySlots, SlotBuffer

# Triton asks once, when it is imported: here its kernels run on the CPU. `make gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

POISON = -1


def poison(buffer: SlotBuffer) -> None:
    """Spoil a slot's memory, where it has any."""
    if buffer.rows is not None:
        buffer.rows.fill(POISON)


@pytest.fixture(autouse=True, scope="session")
def poisoned_slots() -> Iterator[None]:
    """Spoil a slot's memory when its round is over: what goes on reading it fails a test.

    A row says so by itself (ReleasedError); this finds arrays that were taken out of one before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplySlots, "on_release", staticmethod(poison))
        yield
