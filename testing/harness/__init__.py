"""A verifier and a drafter joined in memory, and what tests need around them."""
