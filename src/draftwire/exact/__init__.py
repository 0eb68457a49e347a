"""The normative arithmetic in plain Python integers: SPEC/arithmetic.md, word for word."""
