"""The laws of draftwire, proved by enumeration, and the mutants that the proofs reject."""
