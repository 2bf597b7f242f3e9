"""Compatibility tables, as data that a site can extend."""
