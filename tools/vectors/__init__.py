"""The conformance vectors, made by the oracle alone; ``python -m tools.vectors`` writes them."""
