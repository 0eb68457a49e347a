"""The commands, and nothing else: options in, calls down, text and exit codes out."""
