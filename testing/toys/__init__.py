"""Models that are tables, and laws enumerated over every word: shared by tests and tools."""
