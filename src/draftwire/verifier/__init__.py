"""The verifier program, without a model of its own: the round loop, the judge, the client."""
