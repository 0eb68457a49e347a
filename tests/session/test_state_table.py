"""The whole State x Input product, written down a second time by hand, and what follows from it."""

from __future__ import annotations

import itertools

import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session.link_states import LINK, LinkInput, LinkState
from draftwire.session.session_states import SESSION, Input, State, advance

# One row an input, one column a state, in this order; "." is a protocol error.
STATES = "IDLE OPEN ASKED REPLIED PROPOSED TARGET_ONLY ENDED"
PRODUCT = """
OPENING   ASKED       .           .           .           .           .           .
STEP      .           ASKED       .           .           .           .           .
RETRY     .           OPEN        ASKED       REPLIED     PROPOSED    TARGET_ONLY .
REPLY     .           .           REPLIED     .           .           .           .
COMPLETE  .           .           .           PROPOSED    .           .           .
DECLINE   .           .           TARGET_ONLY .           .           .           .
REFUSE    .           .           TARGET_ONLY TARGET_ONLY .           .           .
GIVE_UP   .           .           TARGET_ONLY TARGET_ONLY TARGET_ONLY .           .
SKIP      TARGET_ONLY TARGET_ONLY .           .           .           .           .
COMMIT    .           .           .           .           OPEN        OPEN        .
STALE     IDLE        OPEN        ASKED       REPLIED     PROPOSED    TARGET_ONLY ENDED
RESET     IDLE        IDLE        IDLE        IDLE        IDLE        IDLE        .
CANCEL    ENDED       ENDED       ENDED       ENDED       ENDED       ENDED       ENDED
"""


def expected() -> dict[tuple[State, Input], State | None]:
    columns = [State[name] for name in STATES.split()]
    table = {}
    for line in PRODUCT.strip().splitlines():
        name, *cells = line.split()
        for state, cell in zip(columns, cells, strict=True):
            table[state, Input[name]] = None if cell == "." else State[cell]
    return table


@pytest.mark.parametrize(("state", "happened"), [*itertools.product(State, Input)])
def test_the_full_product(state: State, happened: Input):
    following = expected()[state, happened]
    if following is None:
        with pytest.raises(ProtocolError) as caught:
            advance(state, happened)
        assert caught.value.code is ProtocolErrorCode.UNEXPECTED_MESSAGE
    else:
        assert advance(state, happened) is following


def test_every_state_can_be_reached():
    reached = {State.IDLE}
    while (
        more := {new for state in reached for new in SESSION.transitions[state].values()} - reached
    ):
        reached |= more
    assert reached == set(State)


def test_nothing_leaves_the_end():
    assert set(SESSION.transitions[State.ENDED].values()) == {State.ENDED}


def test_every_live_state_can_be_reset_and_ended():
    for state in set(State) - {State.ENDED}:
        assert advance(state, Input.RESET) is State.IDLE
        assert advance(state, Input.CANCEL) is State.ENDED


def test_a_round_is_committed_exactly_once():
    """Between two asked or skipped rounds there is exactly one COMMIT, on every path."""
    begins = {Input.OPENING, Input.STEP, Input.SKIP}
    for state, row in SESSION.transitions.items():
        for happened, following in row.items():
            if happened in begins:
                assert state in (State.IDLE, State.OPEN)
                assert following not in (State.IDLE, State.OPEN)
            if happened is Input.COMMIT:
                assert state not in (State.IDLE, State.OPEN)
                assert following is State.OPEN


def test_markdown_shows_the_whole_table():
    text = SESSION.markdown()
    for state in State:
        assert f"| {state.name} | {state.value} |" in text
    rows = [line for line in text.splitlines() if line.count("|") == len(State) + 2]
    assert len(rows) == len(Input) + 2
    missing = sum(following is None for *_, following in SESSION.product())
    assert text.count(" error |") == missing


LINK_PRODUCT = {
    LinkState.KEYED: {"PROVED": "FRESH", "FAULT": "CLOSED", "END": "CLOSED"},
    LinkState.FRESH: {"HELLO": "GREETED", "FAULT": "CLOSED", "END": "CLOSED"},
    LinkState.GREETED: {"HELLO": "AGREED", "FAULT": "CLOSED", "END": "CLOSED"},
    LinkState.AGREED: {"MESSAGE": "AGREED", "FAULT": "CLOSED", "END": "CLOSED"},
    LinkState.CLOSED: {"END": "CLOSED"},
}


@pytest.mark.parametrize(("state", "happened"), [*itertools.product(LinkState, LinkInput)])
def test_the_full_product_of_the_link(state: LinkState, happened: LinkInput):
    following = LINK_PRODUCT[state].get(happened.name)
    if following is None:
        with pytest.raises(ProtocolError) as caught:
            LINK.advance(state, happened)
        assert caught.value.code is ProtocolErrorCode.UNEXPECTED_MESSAGE
    else:
        assert LINK.advance(state, happened) is LinkState[following]
