"""A probabilistic approach to pruning (Qian & Klabjan 2021): the numerical tables, and the
schemes of the theorems.
"""
