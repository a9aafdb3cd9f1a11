"""Adapters, one per wire format, and the registry that names them."""
