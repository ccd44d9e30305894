"""A study's results as one self-contained page that works offline."""

from secateurs_lab.report.page import page, parts, write_files, write_page
from secateurs_lab.report.published import Published, read_published

__all__ = [
    "Published",
    "page",
    "parts",
    "read_published",
    "write_files",
    "write_page",
]
