"""The version of the package, for whoever records with what something was made."""

__version__ = "0.1.0"
