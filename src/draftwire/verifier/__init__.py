"""The verifier program: the round loop, verification, stop rules."""
