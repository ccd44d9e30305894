"""Are two models the same function? Tried on inputs, in float64, on every call of `compact`."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.compaction.outputs import leaves


def samples(example: Example, like: Tensor) -> Iterator[Example]:
    """A sample of random numbers, then the example's first beside another random one, in the dtype
    and on the device of `like`; last the example's first alone.
    """
    generator = torch.Generator().manual_seed(0)

    def first(tensor: Tensor) -> Tensor:
        # Ids and flags are no numbers to convert.
        moved = like if tensor.is_floating_point() else like.device
        return tensor[:1].detach().to(moved)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return _shuffled(tensor, generator).to(like.device)
        # Drawn in float64 and then cast: the same input for a model of any dtype.
        return torch.randn(
            tensor[:1].shape, generator=generator, dtype=torch.float64
        ).to(like)

    def both(tensor: Tensor) -> Tensor:
        return torch.cat([first(tensor), noise(tensor)])

    # The example may be all zeros, which hides what a random input shows; one sample hides what
    # samples do to each other.
    for change in (noise, both, first):
        if isinstance(example, Tensor):
            yield change(example)
        elif isinstance(example, Mapping):
            yield {name: change(tensor) for name, tensor in example.items()}
        else:
            yield [change(tensor) for tensor in example]


def _shuffled(ids: Tensor, generator: torch.Generator) -> Tensor:
    """Ids drawn from the example's own, so that none lies outside of a vocabulary."""
    known = ids.detach().cpu().flatten()
    index = torch.randint(len(known), ids[:1].shape, generator=generator)
    return known[index]


@torch.no_grad()
def difference(one: nn.Module, other: nn.Module, example: Example) -> float:
    """The largest |f(x) − g(x)| / max |f(x)| over all outputs, on an input and on a batch of two
    (where f takes none, on two inputs); infinite where a shape differs. Both stay as they were.
    """
    like = next(one.parameters(), torch.zeros((), dtype=torch.float64))
    alone, together, first = samples(example, like)
    with untouched(one), untouched(other):
        pairs = [(run(one, alone), run(other, alone))]
        try:
            wanted, sample = run(one, together), together
        except Exception:  # it takes one sample at a time
            wanted, sample = run(one, first), first
        pairs.append((wanted, run(other, sample)))
    return max(
        (
            relative(a, b)
            for ours, theirs in pairs
            for a, b in zip(leaves(ours), leaves(theirs), strict=True)
        ),
        default=0.0,
    )


def run(model: nn.Module, example: Example) -> object:
    """The model on an example."""
    if isinstance(example, Tensor):
        return model(example)
    return model(**example) if isinstance(example, Mapping) else model(*example)


def relative(a: Tensor, b: Tensor) -> float:
    """max |a − b| / max |a|."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    scale = float(a.abs().max())
    apart = float((a.double() - b.double()).abs().max())
    if apart == 0:
        return 0.0
    # `apart == apart` fails for NaN: outputs that are
    # no numbers count as infinitely far.
    return apart / scale if scale > 0 and apart == apart else float("inf")
