"""Pruning at initialisation as sketching (Bar & Giryes 2023): the accuracy tables and the
pictures.
"""
