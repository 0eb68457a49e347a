"""The kernels on a GPU: tests of them first, then time beside FlashInfer and vLLM: `make gpu`.

    python -m benchmarks.gpu [--quick] [--out FOLDER] [--no-tests]

Needs torch and Triton with a CUDA device; writes gpu.json and gpu.txt. Each way is captured in a
CUDA graph where it can be, and replayed; what cannot be captured runs eagerly and says so (ours
ends with tokens on the host), and both of a goal are then held against each other eagerly. Beside
each time stands how many times longer it is than a copy of the least bytes that it must move, at
this card's measured copy bandwidth. Then both programs run on the GPU by each choice of kernels,
with the bytes that they read back a step. Exit code 1 when a goal is missed, a test fails or a way
of ours does not run, 5 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "0")  # before Triton is imported

import torch

from benchmarks.common import Goal, Result
from benchmarks.peers import Way, flashinfer_draw, runs, vllm_verify
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.protocol import Kernels, QRows, Round
from draftwire.kernels.registry import kernels_for
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

VOCABULARY, DEPTH, BATCH = 129_280, 5, 4
QUANTISE_LIMIT = 1.5  # of FlashInfer's sampling_from_probs after softmax
VERIFY_LIMIT = 1.0  # of vLLM's rejection kernels
COPY_BYTES = 1 << 30
DENSE = ProposalPolicy(Layout.DENSE, DEPTH, 1.0)
SPARSE = ProposalPolicy(Layout.SPARSE, DEPTH, 1.0, support=32)
UNAVAILABLE = 5
PROMPT = [3, 7, 2, 9, 3, 7]


def main(arguments: Sequence[str]) -> int:
    """Test, measure, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--out", type=Path, default=Path(".out"), help="where the files go")
    parser.add_argument("--no-tests", action="store_true", help="measure alone")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("make gpu needs a CUDA device and a torch built for it", file=sys.stderr)
        return UNAVAILABLE
    began = time.monotonic()
    failed = 0 if options.no_tests else _tests()
    repeats = 30 if options.quick else 200
    bandwidth = copy_bandwidth()
    results = [
        quantise_and_draw(repeats, bandwidth),
        verify(repeats, bandwidth),
        programs(options.quick),
    ]
    machine = _machine(bandwidth)
    machine["tests"] = "not run" if options.no_tests else ("failed" if failed else "passed")
    machine["seconds"] = round(time.monotonic() - began, 1)
    text = _table(machine, results)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "results": [result.as_dict() for result in results]}
    (options.out / "gpu.json").write_text(json.dumps(document, indent=2) + "\n")
    (options.out / "gpu.txt").write_text(text)
    missed = any(not goal.met for result in results for goal in result.goals)
    broken = [name for result in results for name in _broken(result)]
    for name in broken:
        print(f"{name}: does not run", file=sys.stderr)
    return 1 if failed or missed or broken else 0


def _tests() -> int:
    """Run tests/gpu/ in a process of its own, with as much time as leaves room to measure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/gpu"]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    try:
        return subprocess.run(command, env=environment, timeout=300, check=False).returncode
    except subprocess.TimeoutExpired:
        print("the tests took more than five minutes", file=sys.stderr)
        return 1


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy on the device: the best of twenty."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = _times(lambda: target.copy_(source), 20)
    return 2 * COPY_BYTES / min(times)


def quantise_and_draw(repeats: int, bandwidth: float) -> Result:
    """Four rows of logits to counts and tokens, beside softmax and FlashInfer's draw."""
    result = Result(f"quantise + draw, {BATCH} rows, V={VOCABULARY:,}")
    logits = torch.randn(BATCH, VOCABULARY, device="cuda") * 3
    uniform24 = torch.randint(0, TOTAL, (BATCH,)).numpy()

    def ours(kernels: Kernels[Any], policy: ProposalPolicy) -> Way:
        return lambda: kernels.draw(kernels.quantise(logits, policy)[0], uniform24)

    kernels = {name: kernels_for(name, "cuda") for name in ("triton", "torch")}
    dense = BATCH * VOCABULARY * 8  # each logit read once, each count written once
    sparse = BATCH * VOCABULARY * 4
    ways: dict[str, tuple[Way | None, int]] = {
        "draftwire triton dense": (ours(kernels["triton"], DENSE), dense),
        "draftwire triton sparse:32": (ours(kernels["triton"], SPARSE), sparse),
        "draftwire torch dense": (ours(kernels["torch"], DENSE), dense),
        "torch softmax": (lambda: torch.softmax(logits, -1), dense),
        "FlashInfer sampling_from_probs after softmax": (flashinfer_draw(logits), dense),
    }
    found = _measure(result, ways, repeats, bandwidth)
    peer = "FlashInfer sampling_from_probs after softmax"
    _goal(result, found, "draftwire triton dense", peer, QUANTISE_LIMIT)
    return result


def verify(repeats: int, bandwidth: float) -> Result:
    """K = 5 drafts of four requests, from logits to the next tokens, beside vLLM's kernels."""
    result = Result(f"verify K={DEPTH}, batch {BATCH}, V={VOCABULARY:,}, FP32 logits in")
    target = torch.randn(BATCH, DEPTH + 1, VOCABULARY, device="cuda") * 3
    draft = target[:, :DEPTH] + torch.randn(BATCH, DEPTH, VOCABULARY, device="cuda") * 0.5
    scores = target.view(-1, VOCABULARY)
    kernels = {name: kernels_for(name, "cuda") for name in ("triton", "torch")}
    proposals = {policy: _proposal(kernels["triton"], draft, policy) for policy in (DENSE, SPARSE)}

    def ours(kernels: Kernels[Any], policy: ProposalPolicy) -> Way:
        rounds = proposals[policy][0]
        return lambda: kernels.verify(scores, rounds)

    probabilities = proposals[DENSE][1].counts.to(torch.float32) / TOTAL
    tokens = torch.tensor([each.tokens for each in proposals[DENSE][0]], device="cuda")
    # Every logit once, the row that is drawn from once more, and its q.
    dense = BATCH * VOCABULARY * 4 * (DEPTH + 1 + 1 + 1)
    sparse = BATCH * VOCABULARY * 4 * (DEPTH + 1 + 1)
    ways: dict[str, tuple[Way | None, int]] = {
        "draftwire triton dense": (ours(kernels["triton"], DENSE), dense),
        "draftwire triton sparse:32": (ours(kernels["triton"], SPARSE), sparse),
        "draftwire torch dense": (ours(kernels["torch"], DENSE), dense),
        "vLLM rejection sampling": (
            vllm_verify(target, probabilities.view(BATCH, DEPTH, VOCABULARY), tokens),
            dense,
        ),
    }
    found = _measure(result, ways, repeats, bandwidth)
    _goal(result, found, "draftwire triton dense", "vLLM rejection sampling", VERIFY_LIMIT)
    before = kernels["triton"].transfer.bytes_to_host  # type: ignore[attr-defined]
    kernels["triton"].verify(scores, proposals[SPARSE][0])
    after = kernels["triton"].transfer.bytes_to_host  # type: ignore[attr-defined]
    result.figures["bytes to host a step"] = after - before
    return result


def programs(quick: bool) -> Result:
    """The two programs on the GPU: the embedded pair, both models there, and what crosses."""
    from draftwire.drafter.config import DrafterConfig
    from draftwire.drafter.program import DrafterProgram
    from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, embedded_folder
    from draftwire.verifier.generate import generate
    from draftwire.verifier.local import LocalDrafter
    from draftwire.verifier.sampling import Sampling

    result = Result("drafter and target on the GPU, the embedded pair")
    target = HfTargetEngine.from_folder(embedded_folder("target"), device="cuda")
    engine = HfDraftEngine.from_folder(embedded_folder("drafter"), device="cuda")
    texts = {}
    for choice in ("cpu", "torch", "triton"):
        transfer = getattr(kernels_for(choice, "cuda"), "transfer", None)
        before = transfer.bytes_to_host if transfer else 0
        program = DrafterProgram(engine, DrafterConfig(kernels=choice))
        sampling = Sampling(seed=1, max_tokens=24 if quick else 96)
        began = time.perf_counter()
        with (
            LocalDrafter(program, target) as drafter,
            generate(target, drafter, PROMPT, sampling, SPARSE, kernels=choice) as running,
        ):
            texts[choice] = [emission.token for emission in running]
        figures: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 3)}
        if transfer:
            moved = transfer.bytes_to_host - before
            figures["bytes to host a step"] = round(moved / running.report.rounds)
        result.figures[f"--kernels {choice}"] = str(figures)
    differing = sum(text != texts["cpu"] for text in texts.values())
    result.goals.append(Goal("texts that differ from --kernels cpu", differing, 0))
    return result


def _proposal(
    kernels: Kernels[Any], draft: torch.Tensor, policy: ProposalPolicy
) -> tuple[list[Round], QRows[torch.Tensor]]:
    """A proposal for each of the batch, as rounds, and all of its rows on the device."""
    q, _ = kernels.quantise(draft.reshape(-1, VOCABULARY), policy)
    uniform24 = torch.randint(0, TOTAL, (BATCH * DEPTH,)).numpy()
    tokens, rows = kernels.draw(q, uniform24).tolist(), kernels.host_rows(q)
    rounds = []
    for index in range(BATCH):
        own = slice(index * DEPTH, (index + 1) * DEPTH)
        source, first_row = KeyedWords(RequestKey(index)), index * (DEPTH + 1)
        rounds.append(Round(tokens[own], rows[own], first_row, DEPTH + 1, source, 1, 1, 100))
    return rounds, q


def _measure(
    result: Result, ways: dict[str, tuple[Way | None, int]], repeats: int, bandwidth: float
) -> dict[str, tuple[float, float]]:
    """Median seconds of each way, by graph (NaN where it cannot be captured) and eager."""
    found = {}
    for name, (way, size) in ways.items():
        missing = runs(way)
        if way is None or missing is not None:
            result.figures[name] = missing
            continue
        eager = statistics.median(_times(way, repeats))
        replay = _captured(way)
        graph = statistics.median(_times(replay, repeats)) if replay else float("nan")
        least = size / bandwidth
        result.figures[name] = {
            "microseconds, graph": round(graph * 1e6, 2) if replay else "cannot be captured",
            "microseconds, eager": round(eager * 1e6, 2),
            "least bytes": size,
            "times the copy of them": round((graph if replay else eager) / least, 2),
        }
        found[name] = (graph, eager)
    return found


def _broken(result: Result) -> list[str]:
    """Ways of ours that did not run."""
    ours = {name: each for name, each in result.figures.items() if name.startswith("draftwire")}
    return [
        f"{name}, {result.name}" for name, figure in ours.items() if not isinstance(figure, dict)
    ]


def _goal(
    result: Result, found: dict[str, tuple[float, float]], ours: str, peer: str, limit: float
) -> None:
    if peer not in found or ours not in found:
        result.figures[f"goal beside {peer}"] = "not held: one of the two did not run"
        return
    captured = all(found[name][0] == found[name][0] for name in (ours, peer))
    mode = 0 if captured else 1
    value = found[ours][mode] / found[peer][mode]
    result.goals.append(Goal(f"{ours} / {peer}, {'graph' if captured else 'eager'}", value, limit))


def _captured(way: Way) -> Callable[[], object] | None:
    """The replay of a way captured in a graph, or None where it cannot be."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            way()
    torch.cuda.current_stream().wait_stream(stream)
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            way()
    except Exception:  # a peer that waits for the host ends the capture in its own way
        # torch leaves the stream of a capture that failed in place: what follows is not for it.
        torch.cuda.set_stream(before)
        torch.cuda.synchronize()
        return None
    return graph.replay


def _times(way: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call, by events on the device, after a warm-up."""
    for _ in range(5):
        way()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        way()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return times


def _machine(bandwidth: float) -> dict[str, Any]:
    import triton

    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "copy bandwidth, GB/s": round(bandwidth / 1e9, 1),
    }


def _table(machine: dict[str, Any], results: list[Result]) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    for result in results:
        lines.append(f"== {result.name}")
        lines.append(f"   {'':<46} {'graph us':>10} {'eager us':>10} {'x copy':>8}")
        for name, figure in result.figures.items():
            if not isinstance(figure, dict):
                lines.append(f"   {name:<46} {figure}")
                continue
            graph, eager = figure["microseconds, graph"], figure["microseconds, eager"]
            graph = graph if isinstance(graph, float) else "-"
            lines.append(
                f"   {name:<46} {graph:>10} {eager:>10} {figure['times the copy of them']:>8}"
            )
        for goal in result.goals:
            verdict = "met" if goal.met else "MISSED"
            lines.append(
                f"   goal: {goal.name} = {goal.value:.3g}, at most {goal.limit:g}: {verdict}"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
