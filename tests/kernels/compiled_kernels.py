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
from draftwire.kernels.triton import quantise as triton_quantise
from draftwire.kernels.triton import residual as triton_residual
from draftwire.kernels.triton import select as triton_select
from draftwire.kernels.triton import tiles as triton_tiles

MODULES = (
    triton_quantise,
    triton_residual,
    triton_select,
    triton_tiles,
)
NUMBERS = {"N", "V", "NB", "S", "shift", "index", "last"}
NUMBERS |= {"limit", "top_p"}
WIDE_NUMBERS = {"inverse_bits", "least"}
BINARY64 = {"masses", "out"}
INT32 = {"counts", "ids", "tops", "lows", "statuses", "faults", "positives", "tie_counts", "used"}
INT32 |= {"kept", "q"}
CONSTANTS = {"ROWS": 1, "BLOCK": 1024, "NBP": 128, "BITS": 11}
CONSTANTS |= {"bound": 2.0**-42, "BY_VALUE": False, "FIRST": False, "BY_MASS": True}
CONSTANTS |= {"SPARSE": True, "HAS_Q": True}
# One name, two types: int32 sums are of counts, binary64 ones of the residual, int64 of weights.
SUMS = {"assign_remainders": "*i32", "settle": "*i32", "block_counts": "*i32", "draw": "*i32"}
SUMS |= {"residual": "*fp64", "find": "*fp64"}


def type_of(kernel, name):
    short = kernel.removesuffix("_kernel")
    if name in CONSTANTS:
        return "constexpr"
    if name in NUMBERS or name in WIDE_NUMBERS:
        return "i32" if name in NUMBERS else "i64"
    if name in ("logits", "scores"):
        return "*bf16" if short in ("extremes", "weigh") else "*fp32"
    if name == "sums":
        return SUMS.get(short, "*i64")
    if name == "firsts" and short in ("first_largest", "point"):
        return "*i32"
    if name in BINARY64:
        return "*fp64"
    return "*i32" if name in INT32 else "*i64"


EXPONENTIAL = {"weigh_kernel", "mass_kernel", "residual_kernel", "find_kernel"}
SMALLEST = {"BLOCK": 1, "NBP": 1, "FIRST": True, "BY_MASS": False, "BY_VALUE": True}
SMALLEST |= {"SPARSE": False, "HAS_Q": False, "ROWS": 1}


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
    if logits:
        signature |= {name: logits for name in ("logits", "scores") if name in signature}
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


FLAGS = ("BY_VALUE", "FIRST", "BY_MASS", "SPARSE", "HAS_Q")
SHAPES = ({}, {"NBP": 256}, {"BLOCK": 8, "NBP": 1, "BITS": 11})
UNSPECIALISED = {"shift", "index", "last"}


def variants(kernel):
    """Constants and the type of logits of everything that a GPU is given of one kernel."""
    flags = [name for name in FLAGS if name in kernel.arg_names]
    ones = [name for name in kernel.arg_names if name in (NUMBERS | {"least"}) - UNSPECIALISED]
    loads = {"logits", "scores"} & set(kernel.arg_names)
    types = ("*fp32", "*bf16") if loads else (None,)
    for shape, values, logits in product(SHAPES, product((False, True), repeat=len(flags)), types):
        yield shape | dict(zip(flags, values, strict=True)), logits
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
