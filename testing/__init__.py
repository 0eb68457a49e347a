"""What tests and benchmarks share: harness, toys, faults on purpose, fuzzing."""
