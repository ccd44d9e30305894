"""Which entry of a pool's window can be the largest, and what that says of the maximum.

The windows are known only by two functions, their maxima and their sums; derivatives of these tell
which entry leads and which windows share an entry. What cannot be told (an entry of several
windows, a tie) is answered on the safe side.
"""

import torch
from torch import Tensor

from secateurs.graph.primitives import Pool
from secateurs.paths.certificates.flows.pair import lift


def pick(node: Pool, point: Tensor, x: Tensor) -> Tensor:
    """In each window the entry of x where `point` is largest: the derivative of the maximum, taken
    at `point`. For tapes: the derivative is right, the value is not; see `chosen`.
    """
    # x − x.detach() is 0 with the derivative 1: the maximum chooses at `point`, the
    # tape goes to x.
    return lift(node.maximum, point.detach() + (x - x.detach()))


def chosen(node: Pool, point: Tensor, x: Tensor) -> Tensor:
    """The values of `pick`: in each window the entry of x where `point` is largest; of several, a
    mean.
    """

    def maximum(entries: Tensor) -> Tensor:
        return lift(node.maximum, entries)

    value: Tensor = torch.func.jvp(maximum, (point.detach(),), (x.detach(),))[1]
    return value


def runner_up(node: Pool, point: Tensor, high: Tensor) -> Tensor:
    """The largest `high` of each window without the entry where `point` is largest.

    Where that entry lies in several windows, or is not alone, it is not left out.
    """
    with torch.enable_grad():
        leaf = point.detach().clone().requires_grad_()
        top = lift(node.maximum, leaf)
    leads = torch.autograd.grad(top, leaf, torch.ones_like(top))[0] == 1
    total, entries = _total(node, point)
    # Gradient 1 means alone at the top of its windows; a tie shares it. In more than
    # one window an entry may lead one and not the other, so it stays.
    out = leads & (_back(total, entries, torch.ones_like(total)) == 1)
    return lift(node.maximum, high.masked_fill(out, -torch.inf))


def can_lead(node: Pool, low: Tensor, high: Tensor) -> Tensor:
    """Entries that may be the largest of a window, given their bounds."""
    total, leaf = _total(node, low)
    cover = _back(total, leaf, torch.ones_like(total))
    # Each entry sees the threshold of its own window: the transposed window sum copies it back.
    threshold = _back(total, leaf, lift(node.maximum, low))
    # Without outward rounding a lower end may lie above its upper one by a last digit; the leader
    # must be among the candidates even then.
    return (torch.maximum(high, low) >= threshold) | (cover != 1)


def _total(node: Pool, like: Tensor) -> tuple[Tensor, Tensor]:
    """The window sums of a variable, and the variable."""
    with torch.enable_grad():
        leaf = torch.zeros_like(like).requires_grad_()
        return lift(node.total, leaf), leaf


def _back(total: Tensor, leaf: Tensor, values: Tensor) -> Tensor:
    """The transposed window sum; of ones, in how many windows each entry lies."""
    copied: Tensor = torch.autograd.grad(total, leaf, values, retain_graph=True)[0]
    return copied
