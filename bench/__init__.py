"""Measurements: ratios of arms that run interleaved in one call. Run by ``make bench``, never by tests."""
