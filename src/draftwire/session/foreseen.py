"""The STEP after a whole proposal, known but for how that ended, followed in one go (P9).

Made when the proposal is on its way. What is not followed like this goes field by field to the
session, which alone decides how it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from draftwire.session.drafter_session import DrafterSession
from draftwire.session.proposal import DraftTask
from draftwire.wire.following import FRAME_BYTES, asks_alike, known_of, read_following
from draftwire.wire.messages import Step
from draftwire.wire.registry import MessageType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Foreseen:
    """The STEP that follows a session's latest proposal, and then the next.

    slots: of all sessions of the connection, by the session whose STEP claimed each last; another
    session's claim is not judged here. task: what the STEP asks for, once ``read`` has said True;
    the session has followed it then.
    """

    types: Final = (MessageType.STEP,)
    bytes: Final = FRAME_BYTES

    def __init__(self, session: DrafterSession, latest: Step, slots: Mapping[int, int]) -> None:
        self.session = latest.session
        self.task: DraftTask | None = None
        self._session = session
        self._latest = latest
        self._slots = slots
        self._known = known_of(latest)

    def again(self, latest: Step) -> bool:
        """Foresee the STEP after the proposal to another STEP; False if this one cannot."""
        if not asks_alike(latest, self._latest):
            return False
        self._latest = latest
        return True

    def read(self, store: memoryview, words: NDArray[np.int32], begin: int) -> bool:
        """Follow the STEP at byte ``begin`` of ``store``, if it is the one; nothing else happens.

        words: the same memory, not needed here. So many bytes are there.
        """
        latest = self._latest
        if self._slots.get(latest.slot) != latest.session:
            return False
        following = read_following(store, begin, self._known, latest.round)
        if following is None:
            return False
        self.task = self._session.follow(latest, following)
        return self.task is not None
