"""The specification: its text, its oracle in fractions, its vectors, and what generates them."""
