"""The model card, written from the measured report."""

from __future__ import annotations

from typing import Any

TEMPLATE = """\
# The embedded model pair

Two small language models of Python source that travel with draftwire, so that tests, examples and
measurements run on any machine, offline, in seconds. They are test equipment, not assistants.

| | target | drafter |
|---|---|---|
| `LlamaForCausalLM` | {layers_target} layers x {width} | {layers_drafter} layer x {width} |
| parameters | {parameters_target:,} | {parameters_drafter:,} |
| files | {bytes_target:,} bytes | {bytes_drafter:,} bytes |
| held-out loss (nats per token) | {loss_target:.3f} | {loss_drafter:.3f} |
| held-out loss where the next token is the end | {end_target:.3f} | {end_drafter:.3f} |
| one pass over 1 new token, one thread | {pass_1_target:.1f} ms | {pass_1_drafter:.1f} ms |
| one pass over 6 new tokens, one thread | {pass_6_target:.1f} ms | {pass_6_drafter:.1f} ms |

The target is deep and thin on purpose: a pass over six tokens costs far less than six passes over
one, even on a CPU, and a drafter token costs a fraction of a target token. That is the situation
in which speculative decoding pays. The times above were taken during training on a shared machine;
measure your own.

## Expected acceptance

Mean over positions of sum_x min(p(x), q(x)), full vocabulary, both tempered alike:

| temperature | on held-out text | on text sampled from the target |
|---|---|---|
{acceptance_rows}

## Use

Both folders load with `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`.
The tokenizer (byte-level BPE, {vocabulary} entries, no unknown token) is the same byte for byte in
both. `<|begin|>` (id 0) is put before every prompt by the tokenizer, `<|end|>` (id 1) ends a
document, `<|pad|>` (id 2) pads. Weights are stored in float16; the configuration asks for float32
arithmetic. Context: 1024 tokens, trained on windows of 256, 512 and 1024. Held-out loss of the
target by position: {position_losses}.

## Data and licence

{source}, {files} files, {characters:,} characters, {training_tokens:,} training tokens;
licence: {licence}.
Generated tables and non-UTF-8 files were left out. One file in three is one document; the
others are cut into functions, methods and the code between them, so that the end token comes after
a function and not only after a file. One file in 32 was held out, by a hash of its path
({held_out_tokens:,} tokens); every figure on this page is from those files, and was measured on
the exported folders.

## Training

{phase_rows}

1. *shallow*: {layers_shallow} layers from scratch, Muon for the matrices and AdamW for the rest.
2. *deep*: every block is followed by copies of itself with zero output projections, which changes
   nothing at first (Chen et al. 2015, arXiv:1511.05641; Gong et al. 2019), and all
   {layers_target} layers are trained on. Silencing the added blocks again moves the held-out loss
   from {loss_target:.3f} to {loss_stripped:.3f}.
3. *drafter*: one layer, started from the embeddings, first block and final norm of the shallow
   model (of the target, where a run continues a deep one), trained on the text.
4. *distilled*: the drafter against the target's full distribution at temperature 1, on training
   text and on {sampled_tokens:,} tokens sampled from the target (the last run's figures count);
   KL first, then moving to the total variation, which is one minus the acceptance.
{own_text}
The weights come from these commands, in this order, on a shared two-core machine:

```
{commands}
```

One run does all phases from nothing but Python, torch and transformers. Budgets are wall-clock
time, so a faster or idle machine gets much further, and weights differ from machine to machine.
"""


def _phase_rows(report: dict[str, Any]) -> str:
    rows = ["| run | phase | seconds | steps | tokens |", "|---|---|---|---|---|"]
    for number, run in enumerate(report["runs"], start=1):
        for name, phase in run["phases"].items():
            seconds, steps, tokens = (round(phase[key]) for key in ("seconds", "steps", "tokens"))
            rows.append(f"| {number} | {name} | {seconds:,} | {steps:,} | {tokens:,} |")
    return "\n".join(rows)


def _commands(report: dict[str, Any]) -> str:
    lines = []
    for number, run in enumerate(report["runs"], start=1):
        line = f"python -m tools.embedded_pair --minutes {run['minutes']:g} --seed {run['seed']}"
        line += f" --threads {run['threads']}"
        if run["continues"]:
            line += f" --{run['continues']}-from run{number - 1}/target"
        note = f"  # {run['note']}" if "note" in run else ""
        lines.append(f"{line} --output run{number}{note}")
    if "own_text" in report:
        made = report["own_text"]
        lines.append(
            f"python -m tools.embedded_pair.distil --minutes {made['minutes']:g}"
            f" --seed {made['seed']}"
        )
    return "\n".join(lines)


def _own_text(report: dict[str, Any]) -> str:
    """What :mod:`tools.embedded_pair.distil` did last, where it did."""
    made = report.get("own_text")
    if made is None:
        return ""
    before, after = made["tokens_per_pass_before"], made["tokens_per_pass_after"]
    rows = [
        f"   | {name.replace('_', '-')} | {at} | {value:.2f} | {after[name][at]:.2f} |"
        for name, figures in before.items()
        for at, value in figures.items()
    ]
    return (
        f"5. *own text*: the drafter again, on {made['own_tokens']:,} tokens that the target wrote"
        " itself behind\n   beginnings of training documents, at temperatures 0.6 to 1.0:"
        " 0.9 of the L1 distance and 0.1 of the\n   cross-entropy, at 0.65 and 1.0;"
        f" {made['steps']:,} steps, {made['tokens']:,} tokens, {made['seconds']:,.0f} seconds of a"
        " thread\n   beside the sampling. Tokens a target pass, depth 5, sparse 32, on prompts that"
        " no training saw\n   (`python -m tools.embedded_pair.tokens_per_pass`):\n\n"
        + "\n".join(
            ["   | prompts | temperature | before | after |", "   |---|---|---|---|", *rows]
        )
        + "\n"
    )


def _acceptance_rows(report: dict[str, Any]) -> str:
    on_text, on_samples = report["acceptance_held_out"], report["acceptance_sampled"]
    return "\n".join(f"| {t} | {on_text[t]:.3f} | {on_samples[t]:.3f} |" for t in on_text)


def write_card(report: dict[str, Any]) -> str:
    """The text of the card for one training report (see ``__main__.measured_report``)."""
    target, drafter = report["target"], report["drafter"]
    positions = {k[10:].replace("_", "-"): v for k, v in target["loss"].items() if "pos" in k}
    fields = {
        f"{field}_{role}": value
        for role, model in (("target", target), ("drafter", drafter))
        for field, value in {
            "layers": model["layers"],
            "parameters": model["parameters"],
            "bytes": model["bytes"],
            "loss": model["loss"]["all"],
            "end": model["loss"]["end_token"],
            "pass_1": model["pass_milliseconds"]["1"],
            "pass_6": model["pass_milliseconds"]["6"],
        }.items()
    }
    return TEMPLATE.format(
        **fields,
        **report["corpus"],
        **report["shape"],
        loss_stripped=target["loss_without_added_blocks"],
        sampled_tokens=report["runs"][-1]["sampled_tokens"],
        commands=_commands(report),
        position_losses=", ".join(f"{v:.3f} at {k}" for k, v in positions.items()),
        phase_rows=_phase_rows(report),
        acceptance_rows=_acceptance_rows(report),
        own_text=_own_text(report),
    )
