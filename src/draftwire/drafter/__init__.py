"""The drafter program, without a model or a socket of its own."""
