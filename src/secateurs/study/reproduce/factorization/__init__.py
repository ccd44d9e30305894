"""Deep weight factorization (Kolb et al. 2025): tables 1 and 2, the runs behind them, and what
goes beyond.
"""
