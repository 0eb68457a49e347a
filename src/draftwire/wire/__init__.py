"""Bytes to messages and back, in plain Python; every constant stands in ``registry``."""
