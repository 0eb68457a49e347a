"""Mutated bytes for every reader of a peer's bytes: ``make fuzz`` and ``make fuzz-guided``.

`frames` holds the wire against the oracle's reader, `transcripts` both roles' machines against
themselves under every split, `guided` lets coverage choose the bytes.
"""
