"""Cells: what is held against what, for each fault in each state over each version of the wire.

A cell fails if anything hangs, a token is wrong, lost or there twice, either side keeps what is
over, or the losses are not counted as ``expected.json`` says. Text: over v1 (greedy) it equals the
text without the fault, always. Over v2 it does wherever no round was lost and nothing began anew;
elsewhere the law of the text is enumerated, and equals the target's.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from draftwire.verifier.miss import MissReason
from draftwire.wire.registry import WireVersion
from testing.faults import network, peers, several
from testing.faults.law import Case, OtherRequestError, enumerations, shape
from testing.faults.network import Fault
from testing.faults.play import play
from testing.faults.requests import TINY_POLICIES, long_request
from testing.faults.scene import CONNECT, DEADLINE, PASS, Moment, Scene, Strike, Told

FAULTS: Final = (*network.FAULTS, *peers.FAULTS, *several.FAULTS)
EXPECTED: Final = Path(__file__).with_name("expected.json")
SLACK: Final = 0.01  # seconds on the way, over what a round may wait
_POLICY: Final = {"temperature", "top_k", "top_p", "min_p", "support"}
"""Fields of STEP that say what to draw from: with another one q is another, and the law is the
same."""

_SELECTS: Final = ("proposal_key", " token")
"""Fields whose change costs one thing or another by what is drawn: a proposal under another key, or
with another token, is seen for what it is where it differs. What is lost is selected (law 4)."""


@dataclass
class Cell:
    """One cell, run. outcomes: by what happened, the variants in which it did."""

    fault: str
    moment: Moment
    version: WireVersion
    why_not: str = ""  # it does not apply
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)  # how the text was proved: same, law
    wrong: list[str] = field(default_factory=list)
    runs: int = 0  # enumerated, each struck and with the outcome of its variant
    seconds: float = 0.0

    @property
    def sign(self) -> str:
        """What stands in the table."""
        if self.why_not:
            return "."
        return "FAIL" if self.wrong else "+".join(sorted(self.held, reverse=True))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "fault": self.fault,
            "state": self.moment.value,
            "wire": self.version.name.lower(),
            "does not apply": self.why_not,
            "outcomes": self.outcomes,
            "text": sorted(self.held),
            "enumerated runs": self.runs,
            "wrong": self.wrong,
            "seconds": round(self.seconds, 3),
        }


def outcome_of(told: Told) -> str:
    """Return what a run has come to in words: losses by reason, what was ignored, connections."""
    out = [f"{name} {n}" for name, n in sorted(told.misses.items())]
    out += [f"ignored {name} {n}" for name, n in sorted(told.ignored.items())]
    for number, apart in enumerate(told.apart, 1):
        out += [f"{name} {n} by request {number}" for name, n in sorted(apart.items())]
    if told.strays:
        out.append(f"strays {told.strays}")
    if told.connections != 1:
        out.append(f"connections {told.connections}")
    if not told.resumed:
        out.append("does not resume")
    return ", ".join(out) or "nothing"


def run_cell(fault: Fault, moment: Moment, version: WireVersion, *, law: bool = True) -> Cell:
    """Run every variant of a cell; law: whether laws are enumerated too."""
    cell = Cell(fault.name, moment, version)
    began = time.perf_counter()
    variants = fault.applies(moment, version)
    if isinstance(variants, str):
        cell.why_not = variants
        return cell
    enumerate_once: dict[str, list[tuple[Strike, Told]]] = {}
    for name, strike in variants:
        _run_variant(cell, fault, name, strike, enumerate_once)
    if law:
        for number, (outcome, variants_of) in enumerate(enumerate_once.items()):
            _prove(cell, fault, outcome, variants_of, number)
    wanted = expectation(fault.name, moment, version)
    if _counted(cell.outcomes) != wanted:
        cell.wrong.append(f"counted {_counted(cell.outcomes)}, not {wanted}")
    cell.seconds = time.perf_counter() - began
    return cell


def _run_variant(
    cell: Cell,
    fault: Fault,
    name: str,
    strike: Strike,
    enumerate_once: dict[str, list[tuple[Strike, Told]]],
) -> None:
    moment, version = cell.moment, cell.version
    try:
        told = play(_scene(fault, moment, version, strike))
    except Exception as error:
        cell.wrong.append(f"{name}: {type(error).__name__}: {error}")
        return
    outcome = outcome_of(told)
    cell.outcomes.setdefault(outcome, []).append(name)
    cell.wrong += [f"{name}: {what}" for what in told.wrong]
    if not told.struck:
        cell.wrong.append(f"{name}: the moment never came")
    longest = told.longest - told.jumped
    if longest > _most_seconds(told):
        cell.wrong.append(f"{name}: a round took {longest:.2f} s")
    without = _without(fault, moment, version)
    same = told.texts == without
    whole = not told.misses and set(told.generations) == {1}
    asked_otherwise = moment in (Moment.OPENING, Moment.ASKED) and name in _POLICY
    promised = whole and fault.same_q and not asked_otherwise and not _is_lie(name)
    for number, apart in enumerate(told.apart):
        if not apart and told.generations[number] == 1 and told.texts[number] != without[number]:
            cell.wrong.append(f"{name}: request {number + 1} has another text, and lost nothing")
    if version is WireVersion.V1 or promised:
        cell.held.add("same")
        if not same:
            cell.wrong.append(f"{name}: the text is another one, and no round was lost")
    elif not _is_lie(name) and not name.endswith(_SELECTS):
        enumerate_once.setdefault(outcome, []).append((strike, told))


def _is_lie(name: str) -> bool:
    """Whether a variant gives q's counts to other ids: a lie that no audit sees."""
    return name.endswith(" ids")


def _prove(
    cell: Cell, fault: Fault, outcome: str, struck: list[tuple[Strike, Told]], number: int
) -> None:
    """Hold the enumerated law under a fault against the target's, once for all that end alike.

    Dense and sparse in turns. A variant or layout whose tiny frames make another case of the fault
    is passed over for the next, depth 2 the last, and one must fit.
    """
    turn = (number + list(Moment).index(cell.moment)) % 2
    dense, sparse, deeper = TINY_POLICIES
    other = ""
    for policy in (*((dense, sparse) if turn else (sparse, dense)), deeper):
        said = f"law ({outcome}, {policy.layout.name.lower()}, depth {policy.depth})"
        for strike, told in struck:
            case = Case(
                cell.moment,
                strike,
                policy,
                fault.tokens,
                fault.again,
                fault.pinned,
                fault.together,
                shape(told),
            )
            try:
                laws = list(enumerations(case))
            except OtherRequestError as error:
                other = f"{said}: {error}"
                continue
            except Exception as error:
                cell.wrong.append(f"{said}: {type(error).__name__}: {error}")
                return
            cell.held.add("law")
            cell.runs += sum(found.runs for found in laws)
            if not all(found.is_the_targets() for found in laws):
                cell.wrong.append(f"{said}: it is not the target's")
            return
    cell.wrong.append(other)


def _most_seconds(told: Told) -> float:
    connecting = told.connections != 1 or told.misses[MissReason.NO_CONNECTION.value]
    return PASS + DEADLINE + SLACK + (CONNECT if connecting else 0.0)


def _scene(fault: Fault, moment: Moment, version: WireVersion, strike: Strike | None) -> Scene:
    return Scene(
        moment,
        version,
        long_request(version, fault.tokens),
        strike,
        again=fault.again,
        pinned=fault.pinned,
        together=fault.together,
    )


def _without(fault: Fault, moment: Moment, version: WireVersion) -> list[tuple[int, ...]]:
    """The texts of the same requests without the fault."""
    return _texts(fault.tokens, fault.again, fault.pinned, fault.together, moment, version)


@cache
def _texts(
    tokens: int, again: bool, pinned: bool, together: int, moment: Moment, version: WireVersion
) -> list[tuple[int, ...]]:
    size = long_request(version, tokens)
    scene = Scene(moment, version, size, None, again=again, pinned=pinned, together=together)
    told = play(scene)
    if told.wrong or told.misses:
        raise ValueError(f"without a fault: {told}")
    return told.texts


@cache
def _expectations() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(EXPECTED.read_text())
    return found


def _counted(outcomes: dict[str, list[str]]) -> str | dict[str, list[str]]:
    """One outcome of every variant stands for itself."""
    return next(iter(outcomes)) if len(outcomes) == 1 else outcomes


def expectation(fault: str, moment: Moment, version: WireVersion) -> Any:
    """Return what is to be counted; v1 counts as v2 does unless it says otherwise."""
    found = _expectations()
    both = found.get("v2", {}).get(fault, {}).get(moment.name)
    own = found.get(version.name.lower(), {}).get(fault, {}).get(moment.name)
    return both if own is None else own


def as_expected(cells: Iterable[Cell]) -> dict[str, Any]:
    """What was counted, as ``expected.json`` has it; of faults that were not run, what it has."""
    cells = list(cells)
    ran = {cell.fault for cell in cells}
    known = (_expectations().get(name, {}) for name in ("v2", "v1"))
    v2, v1 = ({name: row for name, row in each.items() if name not in ran} for each in known)
    for cell in cells:
        if not cell.outcomes:
            continue
        counted, moment = _counted(cell.outcomes), cell.moment.name
        if cell.version is WireVersion.V2:
            v2.setdefault(cell.fault, {})[moment] = counted
        elif v2.get(cell.fault, {}).get(moment) != counted:
            v1.setdefault(cell.fault, {})[moment] = counted
    return {"v2": v2, "v1": v1}


def cells() -> Iterator[tuple[Fault, Moment, WireVersion]]:
    """Every cell, in the order of the table."""
    for version in (WireVersion.V2, WireVersion.V1):
        for fault in FAULTS:
            for moment in Moment:
                yield fault, moment, version


def quiet() -> None:
    """Nothing of these runs is of interest in a log."""
    log = logging.getLogger("draftwire")
    log.addHandler(logging.NullHandler())
    log.propagate = False
