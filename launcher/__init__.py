"""dcu-launch: from one Hygon DCU to many. Sent to nodes whole: keep this file empty of imports, Python 3.8 syntax."""

__version__ = "0.1.0"
