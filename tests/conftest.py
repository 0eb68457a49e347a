"""Settings of every test process."""

import os
from collections.abc import Callable, Iterator

import pytest

from draftwire.session.slot_buffers import ReplySlots, SlotHandle
from draftwire.session.slots import Claim

# Triton asks once, when it is imported: here its kernels run on the CPU. `make gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

POISON = -1


@pytest.fixture(autouse=True, scope="session")
def poisoned_slots() -> Iterator[None]:
    """Spoil a slot's memory when its round is over: whoever goes on reading it fails a test.

    A row says so by itself (ReleasedError); this finds arrays that were taken out of one before.
    """
    end = SlotHandle._end

    def spoiled(self: SlotHandle, how: Callable[[ReplySlots, Claim], bool]) -> None:
        held = self._held
        end(self, how)
        if held is not None:
            slots, claim = held
            rows = slots._slots[claim.number].buffer.rows
            if rows is not None:
                rows.fill(POISON)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotHandle, "_end", spoiled)
        yield
