"""The drafter program, without a model of its own: proposals, batches, admission, the server."""
