"""Rows of q to the bytes of a reply, and back: dense, sparse, shards."""
