"""SPEC once more, in fractions: the semantics that every fast path is held to.

Correct, complete and readable before fast. It imports the standard library alone and nothing of
draftwire, so that a mistake there cannot be repeated here; only tests and tools import it.

- :mod:`spec.oracle.arithmetic`: logits to counts (A1-A12).
- :mod:`spec.oracle.words`: the keyed generator, and integers made of its words (A13-A15).
- :mod:`spec.oracle.decisions`: one draw, one round, decided by given words (A16-A22).
- :mod:`spec.oracle.laws`: the same decisions as probabilities, up to the law of a whole text.
- :mod:`spec.oracle.frames`: frames and payload fields, read and written from tables of its own.
- :mod:`spec.oracle.messages`: what each message must keep to, and the q rows of a reply.
- :mod:`spec.oracle.agreement`: what two HELLOs agree on.
"""
