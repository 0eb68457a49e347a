"""The oracle, held to published numbers and to itself."""
