"""Which few hundred weights should a net keep? They are exchanged until nothing better is found."""

from secateurs.study.reproduce.factorization.exchange.search import (
    LARGEST,
    Exchange,
    exchange,
    grow_,
    remove_,
)
from secateurs.study.reproduce.factorization.exchange.surgeon import (
    SAMPLE,
    gauss_newton,
    promises,
    surgeon,
)

__all__ = [
    "LARGEST",
    "SAMPLE",
    "Exchange",
    "exchange",
    "gauss_newton",
    "grow_",
    "promises",
    "remove_",
    "surgeon",
]
