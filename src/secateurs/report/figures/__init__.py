"""Figures drawn as SVG: axes, lines with marks, fields of numbers."""
