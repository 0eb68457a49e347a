"""The normative arithmetic in plain Python integers: spec/arithmetic.md, word for word."""
