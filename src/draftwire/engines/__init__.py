"""Adapters: they translate a model library's types and call down."""
