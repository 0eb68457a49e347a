"""Measurements against the goals, each beside a peer in the same run: ``make bench``."""
