"""The conformance vectors, made by the oracle alone: ``python -m spec.generators.vectors``."""
