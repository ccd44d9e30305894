"""A study's results as one self-contained page that works offline."""

from secateurs.report.page import page, parts, write_files, write_page
from secateurs.report.published import Published, read_published

__all__ = [
    "Published",
    "page",
    "parts",
    "read_published",
    "write_files",
    "write_page",
]
