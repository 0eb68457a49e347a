"""Pure bytes to messages and back; every wire constant stands in :mod:`draftwire.wire.registry`."""
