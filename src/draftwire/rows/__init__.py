"""Rows of q to the bytes of a reply, and back: between kernels and wire below, session above.

``reply`` has the two calls, ``encode_rows`` and ``decode_rows``, and what all layouts share; a
layout is one module of compiled loops (``dense``, ``sparse``); ``shards`` carries one shard of the
vocabulary in the same layouts; ``audit`` recomputes every draw of a reply in one call.

Where a new layout stands, in ``src``: its number and the bytes of an entry in ``wire/registry.py``;
its loops in a module here; a line in ``reply.LAYOUTS``; its bytes in plain integers in
``exact/payload.py``, which is normative.
"""
