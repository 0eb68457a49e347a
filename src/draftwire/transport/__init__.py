"""TCP, TLS, keys and queues of bytes; nothing here knows what the bytes mean."""
