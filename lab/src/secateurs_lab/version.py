"""The version of the package, to be recorded in what it writes."""

__version__ = "0.1.0"
