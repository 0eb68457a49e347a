"""SPEC once more, in fractions: the semantics that every fast path is held to.

Correct, complete and readable before fast. It imports the standard library alone and nothing of
draftwire, so that a mistake there cannot be repeated here; only tests and tools import it.

- :mod:`oracle.arithmetic`: logits to counts (A1-A12).
- :mod:`oracle.words`: the keyed generator, and integers made of its words (A13-A15).
- :mod:`oracle.decisions`: one draw, one round, decided by given words (A16-A22).
- :mod:`oracle.laws`: the same decisions as probabilities, up to the law of a whole text.
- :mod:`oracle.frames`: frames and payload fields, read and written from tables of its own.
- :mod:`oracle.messages`: what each message must keep to, and the q rows of a reply.
- :mod:`oracle.agreement`: what two HELLOs agree on.
"""
