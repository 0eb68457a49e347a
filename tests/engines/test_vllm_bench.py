"""``benchmarks.vllm`` without vLLM: which ways are held together, and what comes of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vllm
from benchmarks.vllm_ways import COLOCATED, DENSE, DRAFTER, REMOTE, TARGET_ONLY

SECONDS = {TARGET_ONLY: 1.0, COLOCATED: 4.0, REMOTE: 2.0, DENSE: 8.0}


class World:
    """Ways whose every turn is slower than the last by a half, as on a machine that fills up."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.most: set[frozenset[str]] = set()
        self.slower = 1.0
        self.refuses: str | None = None

    def child(self, way: str, options: argparse.Namespace) -> Any:
        return Way(self, way)


class Way:
    memory = 1.0

    def __init__(self, world: World, way: str) -> None:
        self.world, self.way, self.address = world, way, ""

    def ask(self, **question: Any) -> dict[str, Any]:
        world = self.world
        if "load" in question:
            if self.way == world.refuses:
                raise vllm.RefusedError("no such layers")
            world.loaded.add(self.way)
            world.most.add(frozenset(world.loaded))
            return {"address": "here"} if self.way == DRAFTER else {}
        if self.way == DRAFTER:
            return {"draft": 0.0, "model": 0.0}
        assert self.way in world.loaded
        if self.way == TARGET_ONLY:
            world.slower *= 1.5
        answer: dict[str, Any] = dict.fromkeys(
            ("propose", "proposals", "taken", "audit", "verify"), 0.0
        )
        answer |= {"received": 0.0, "misses": 0, "drafts": 1, "positions": [1, 0, 0], "tokens": 8}
        return answer | {"seconds": SECONDS[self.way] * world.slower, "ids": [[1]] * 8}

    def close(self) -> None:
        self.world.loaded.discard(self.way)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(vllm, "Child", world.child)
    monkeypatch.setattr(vllm, "version", lambda name: "1")
    return world


def options(*, gemma: bool) -> argparse.Namespace:
    return argparse.Namespace(
        quick=True, tokens=8, depth=3, gemma=gemma, target=Path("pair/target"), drafter=Path()
    )


def test_the_embedded_ways_are_held_side_by_side(world: World) -> None:
    result = vllm.run(options(gemma=False))
    assert {TARGET_ONLY, DRAFTER, COLOCATED, REMOTE} in world.most
    assert "order" not in result.figures
    assert result.figures["batch 8"]["remote / colocated"] == 2.0


def test_large_ways_are_held_one_after_another_and_compared_by_target_only(world: World) -> None:
    result = vllm.run(options(gemma=True))
    speculating = {COLOCATED, REMOTE, DENSE}
    assert max(len(loaded & speculating) for loaded in world.most) == 1
    assert "one way after another" in result.figures["order"]
    for batch in ("batch 1", "batch 8"):
        figures = result.figures[batch]
        assert figures["colocated / target-only"] == 0.25
        assert figures["remote / target-only"] == 0.5
        assert figures["remote / colocated"] == 2.0  # of tokens/s themselves it is another
        assert figures["remote, dense / colocated"] == 0.5
        assert figures["remote tokens/s"] < figures["colocated tokens/s"]
    assert [goal.met for goal in result.goals] == [True]
    assert world.loaded == set()


def test_a_refusal_of_the_peer_is_told_and_the_others_are_measured(world: World) -> None:
    world.refuses = COLOCATED
    result = vllm.run(options(gemma=True))
    assert result.figures["colocated: not measured, vLLM ended"] == "no such layers"
    assert result.figures["batch 1"]["remote, dense / target-only"] == 0.125
    assert result.goals == []


@pytest.mark.parametrize("way", [TARGET_ONLY, DRAFTER, REMOTE, DENSE])
def test_a_refusal_of_our_own_fails(world: World, way: str) -> None:
    world.refuses = way
    with pytest.raises(vllm.RefusedError):
        vllm.run(options(gemma=True))
    assert world.loaded == set()
