"""What backward passes for all neurons would gain, guessed from a few of each layer.

A pass for one neuron of a convolution costs as much as one for an output, and there are thousands
of them. On networks of two convolutions with maximum pools they lower the bound by 1 % for sixty
times the time; on five convolutions they lower it to a third. So a few neurons are tried first.
"""

import torch
from torch import Tensor

from secateurs.paths.certificates.flows.backward import Backward, Relaxed
from secateurs.paths.certificates.flows.bounds import FIELDS, Bounds
from secateurs.paths.certificates.flows.planes import costliest
from secateurs.paths.certificates.flows.relaxed import Relaxation

_TRIED = 4
"""Neurons per layer and box. Four cost as much as the passes from ten outputs."""

_PAIRS = (("l", "h"), ("gl", "gh"), ("dl", "dh"))


class Probe(Relaxation):
    """A relaxation that believes of all neurons of a layer what passes showed for a few.

    Its results are guesses and no bounds: they only say where passes are worth their price.
    """

    def improved(self, x: Relaxed, name: str) -> Bounds:
        """The forward bounds, narrowed as much as those of the neurons that lose most."""
        bounds = self.bounds(x)
        flat = bounds.flattened()
        open_ = ~flat.settled
        # Up to the first open layer the forward bounds are exact.
        if x.depth < 2 or not bool(open_.any()):
            return bounds
        index = costliest(flat, open_, _TRIED)
        old = Bounds(**{k: getattr(flat, k).gather(1, index) for k in FIELDS})
        new = old.meet(self._around(x, index))
        ends: dict[str, Tensor] = {}
        for low, high in _PAIRS:
            share = (_width(new, low, high) / _width(old, low, high)).clamp(max=1)
            # 0/0 where nothing is open, ∞/∞ where the bounds overflow: the hopeful guess.
            share = share.nan_to_num(nan=0.0)
            a, b = getattr(flat, low), getattr(flat, high)
            middle, half = (a + b) / 2, share * (b - a) / 2
            ends[low], ends[high] = middle - half, middle + half
        return Bounds(**ends).reshaped(bounds.l.shape)


def largest(flow: Backward, y: Relaxed, index: Tensor) -> Tensor:
    """The largest |f − g| of these outputs by a pass, or by the forward flow; (boxes, outputs)."""
    boxes, rows = index.shape
    unit = y.d.new_zeros(rows, boxes, y.d[0].numel())
    unit = unit.scatter(2, index.T.unsqueeze(2), 1.0).reshape(rows, *y.d.shape)
    high, low = flow.above(y, None, torch.cat([unit, -unit])).detach().chunk(2)
    forward = flow.bounds(y).largest.flatten(1).detach().expand(boxes, -1)
    # Both are sound, and the forward bound may be the tighter one.
    return torch.minimum(torch.maximum(high, low).T, forward.gather(1, index))


def _width(b: Bounds, low: str, high: str) -> Tensor:
    width: Tensor = (getattr(b, high) - getattr(b, low)).relu()
    return width.sum(dim=1, keepdim=True)
