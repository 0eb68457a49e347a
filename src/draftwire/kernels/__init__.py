"""The arithmetic, vectorised: one operation, one signature, a module for each backend."""
