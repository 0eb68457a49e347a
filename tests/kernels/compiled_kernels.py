"""Compile every Triton kernel for a GPU that need not be there, and print what came out, as JSON.

Run by itself, without the interpreter: ``TRITON_INTERPRET=0 python compiled_kernels.py 90``. With
``every``, all variants of each kernel that a GPU is given: both types of logits, every flag, blocks
of V = 129,280 and 262,144, and numbers that are 1, which Triton compiles in. That takes minutes.
"""

import json
import re
import struct
import sys
from itertools import product

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from draftwire.exact import quantise as exact
from draftwire.kernels.triton import philox as triton_philox
from draftwire.kernels.triton import quantise as triton_quantise
from draftwire.kernels.triton import select as triton_select
from draftwire.kernels.triton import tiles as triton_tiles
from draftwire.kernels.triton import top_k as triton_top_k
from draftwire.kernels.triton import verify as triton_verify

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


EXPONENTIAL = {"weigh_kernel", "mass_kernel", "judge_kernel", "residual_kernel", "find_kernel"}
SMALLEST = {"BLOCK": 1, "NBP": 1, "SP": 1, "FIRST": True, "BY_MASS": False, "BY_VALUE": True}
SMALLEST |= {"SPARSE": False, "CORRECTS": False, "SPREAD": 1, "COUNT": 4, "ROWS": 1}


def exponentials(ptx):
    """Whether the constants of A4 stand in it to the last bit: none has been through binary32."""
    numbers = (exact.LOG2E, exact.LN2_HI, exact.LN2_LO, *exact.COEFFICIENTS[2:])
    # A difference may be compiled as the sum with the negative.
    found = {int(bits, 16) for bits in re.findall(r"\b0d([0-9A-F]{16})\b", ptx)}
    patterns = (struct.unpack("<Q", struct.pack("<d", number))[0] for number in numbers)
    return all({bits, bits ^ 1 << 63} & found for bits in patterns)


def compiled(kernel, capability, shape, logits=None):
    signature = {name: type_of(kernel.fn.__name__, name) for name in kernel.arg_names}
    given = CONSTANTS | shape
    if logits and "logits" in signature:
        signature["logits"] = logits
    signature |= {name: "constexpr" for name in kernel.arg_names if name in given}
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
                        "exponential": name in EXPONENTIAL and exponentials(ptx),
                    },
                )
    json.dump(found, sys.stdout)


FLAGS = ("BY_VALUE", "FIRST", "BY_MASS", "SPARSE", "CORRECTS")
SHAPES = ({}, {"NBP": 256, "SP": 256}, {"BLOCK": 8, "NBP": 1, "SP": 1, "SPREAD": 1, "BITS": 11})
UNSPECIALISED = {"shift", "index", "last"}


def variants(kernel):
    """Constants and the type of logits of everything that a GPU is given of one kernel."""
    flags = [name for name in FLAGS if name in kernel.arg_names]
    ones = [name for name in kernel.arg_names if name in (NUMBERS | {"least"}) - UNSPECIALISED]
    counts = (1, 2, 4) if "COUNT" in kernel.arg_names else (2,)
    types = ("*fp32", "*bf16") if "logits" in kernel.arg_names else (None,)
    for shape, values, count, logits in product(
        SHAPES, product((False, True), repeat=len(flags)), counts, types
    ):
        yield shape | dict(zip(flags, values, strict=True)) | {"COUNT": count}, logits
    for logits in types:
        yield dict.fromkeys(ones, 1), logits
        for one in ones:
            yield {one: 1}, logits


def every(capability):
    """Compile all of them; the number is printed, and whatever does not compile raises."""
    made = {}
    for module in MODULES:
        for name, kernel in vars(module).items():
            if isinstance(kernel, JITFunction) and name.endswith("_kernel"):
                for shape, logits in variants(kernel):
                    compiled(kernel, capability, shape, logits)
                    made[name] = made.get(name, 0) + 1
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    (every if "every" in sys.argv else main)(int(sys.argv[1]))
