"""TCP, and in-memory ends with faults; nothing here knows what the bytes mean."""
