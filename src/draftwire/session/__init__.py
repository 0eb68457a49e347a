"""Sans-I/O state machines: bytes, messages and time in; messages, events and bytes out."""
