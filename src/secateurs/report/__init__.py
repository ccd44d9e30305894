"""A study's results as one self-contained page that works offline."""

from secateurs.report.page import page, write_page

__all__ = ["page", "write_page"]
