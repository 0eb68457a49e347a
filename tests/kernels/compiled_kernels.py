"""Compile every Triton kernel for a GPU that need not be there, and print what came out, as JSON.

Run by itself, without the interpreter: ``TRITON_INTERPRET=0 python compiled_kernels.py 90``.
"""

import json
import re
import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from draftwire.kernels import (
    triton_philox,
    triton_quantise,
    triton_select,
    triton_tiles,
    triton_top_k,
    triton_verify,
)

MODULES = (
    triton_philox,
    triton_quantise,
    triton_select,
    triton_tiles,
    triton_top_k,
    triton_verify,
)
NUMBERS = {"N", "V", "NB", "S", "B", "K", "W", "k", "AS", "CS", "BS", "shift", "index", "last"}
NUMBERS |= {"limit", "top_p"}
WIDE_NUMBERS = {"inverse_bits", "least"}
BINARY64 = {"masses", "largests", "scales"}
INT32 = {"counts", "ids", "tops", "lows", "statuses", "faults", "positives", "tie_counts", "used"}
INT32 |= {"tickets", "firsts_of_blocks", "dense", "out_ids"}
CONSTANTS = {"ROWS": 1, "BLOCK": 1024, "NBP": 128, "BITS": 11, "SP": 32, "COUNT": 2, "SPREAD": 64}
CONSTANTS |= {"bound": 2.0**-42, "BY_VALUE": False, "FIRST": False, "BY_MASS": True}
CONSTANTS |= {"SPARSE": True, "CORRECTS": True}
# One name, two types: int32 sums are of counts, binary64 ones of the residual, int64 of weights.
SUMS = {"hand_out": "*i32", "settle": "*i32", "block_counts": "*i32", "draw": "*i32"}
SUMS |= {"residual": "*fp64", "find": "*fp64"}


def type_of(kernel, name):
    short = kernel.removesuffix("_kernel")
    if name in CONSTANTS:
        return "constexpr"
    if name in NUMBERS or name in WIDE_NUMBERS:
        return "i32" if name in NUMBERS else "i64"
    if name == "logits":
        return "*bf16" if short in ("extremes", "weigh") else "*fp32"
    if name == "sums":
        return SUMS.get(short, "*i64")
    if name == "firsts" and short in ("first_largest", "point"):
        return "*i32"
    if name == "out":
        return "*fp32" if short == "top_k" else "*i64"
    if name in BINARY64:
        return "*fp64"
    return "*i32" if name in INT32 else "*i64"


SMALLEST = {"BLOCK": 1, "NBP": 1, "SP": 1, "FIRST": True, "BY_MASS": False, "BY_VALUE": True}
SMALLEST |= {"SPARSE": False, "CORRECTS": False, "SPREAD": 1, "COUNT": 4, "ROWS": 1}


def compiled(kernel, capability, shape):
    signature = {name: type_of(kernel.fn.__name__, name) for name in kernel.arg_names}
    given = CONSTANTS | shape
    constants = {name: given[name] for name in kernel.arg_names if name in given}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    made = compile(source, target=target, options={"enable_fp_fusion": False})
    return made.asm["ptx"]


def main(capability):
    found = {}
    for module in MODULES:
        for name, kernel in vars(module).items():
            if isinstance(kernel, JITFunction) and name.endswith("_kernel"):
                compiled(kernel, capability, SMALLEST)
                ptx = compiled(kernel, capability, {})
                found.setdefault(
                    name,
                    {
                        "contracted": len(re.findall(r"\bfma\.\w+\.f64", ptx)),
                        "products": len(re.findall(r"\bmul\.(?:rn\.)?f64", ptx)),
                        "binary32": len(re.findall(r"\b(?:mul|add|sub|div)\.\w*\.?f32", ptx)),
                    },
                )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
