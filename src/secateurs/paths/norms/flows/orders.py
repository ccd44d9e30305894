"""How the coordinates of one path lifting lie to those of another: equal, below, above or mixed."""

from enum import Enum

from torch import Tensor


class Order(Enum):
    """How the second network's path coordinates lie to the first's."""

    EQUAL = 0
    BELOW = 1  # between 0 and the first's: pruned, rounded toward zero
    ABOVE = 2
    MIXED = 3


def compare(a: Tensor, b: Tensor) -> Order:
    """Where the entries of b lie to those of a."""
    if bool((a == b).all()):
        return Order.EQUAL
    # Signs before sizes: a weight of the other sign is no smaller version of the first.
    if not same_sign(a, b):
        return Order.MIXED
    if bool((b.abs() <= a.abs()).all()):
        return Order.BELOW
    return Order.ABOVE if bool((b.abs() >= a.abs()).all()) else Order.MIXED


def same_sign(a: Tensor, b: Tensor) -> bool:
    """No entry changes its sign; zero has either."""
    return bool((a.sign() * b.sign() >= 0).all())


def join(a: Order, b: Order) -> Order:
    """What two orders on parts of the paths leave for all of them."""
    if a is b or b is Order.EQUAL:
        return a
    # EQUAL is neutral; two different orders leave nothing that can be said.
    return b if a is Order.EQUAL else Order.MIXED
