"""Drafter and target over several ranks, each with its own columns of the vocabulary.

Nothing of torch is imported before a group is joined. The trunk of a model is replicated on every
rank and only its head is split: what is proved here is the ownership of columns, draws and
decisions, not a saving of memory in the trunk, which tensor parallelism inside a layer would bring.
"""
