"""Neurons of one value with a number for each kind, and what one node adds to them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Pool
from secateurs.paths.bounds.colours import distinct

DRAWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Neurons:
    """The neurons of one value: a number of their kind per draw (0: no neuron), and of themselves.

    depth: the longest path that ends here, in edges.
    """

    colours: tuple[Tensor, ...]
    numbers: Tensor
    depth: int

    @property
    def present(self) -> Tensor:
        """1 where there is a neuron, 0 in padding."""
        return (self.colours[0] != 0).double()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOfKinds:
    """The neurons that one node adds: how many kinds, and with how many free coordinates in all.

    Attributes:
        coordinates: For each kind one per antecedent with a weight of its own, one per kind of
            antecedent that is reached by fixed weights, and one for a bias.
        own: The parameters the node reads.
        before: The kinds among its antecedents.
        uneven: Some neurons of the node have fewer antecedents than others.
    """

    node: Affine | Activation | Pool | Add
    kinds: int
    coordinates: int
    own: int
    before: int
    uneven: bool


def kinds_of(x: Neurons) -> int:
    """How many kinds are among these neurons."""
    return int((distinct(x.colours[0]) != 0).sum())


def of_one_kind(total: object, x: Neurons, edges: Tensor) -> Tensor:
    """Whether all antecedents of a neuron are of one kind: no variance among small numbers."""
    single = torch.ones_like(edges, dtype=torch.bool)
    count = edges.clamp_min(1)
    for colour in x.colours:
        # 1021 is the largest prime below 2¹⁰: squares of such numbers add up exactly,
        # so the variance of equal ones is zero but for the rounding of the quotient.
        small = torch.remainder(colour, 1021.0) + (colour != 0)
        mean = total(small) / count  # type: ignore[operator]
        spread = total(small.square()) / count - mean.square()  # type: ignore[operator]
        single &= spread <= 1e-12 * mean.square().clamp_min(1)
    return single
