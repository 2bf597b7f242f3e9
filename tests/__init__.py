"""The tests. Importable as ``tests``, so that they share the lab and the fakes."""
