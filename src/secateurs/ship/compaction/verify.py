"""Are two models the same function? Tried on inputs, in float64, on every call of `compact`."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.compaction.outputs import leaves

BATCH = 3


def samples(example: Example, like: Tensor) -> Iterator[Example]:
    """The example's first sample, and random numbers, alone and as a batch, in the dtype and on the
    device of `like`."""
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

    def batch(tensor: Tensor) -> Tensor:
        return torch.cat([noise(tensor) for _ in range(BATCH)])

    # The example may be all zeros, which hides what a random input shows; one sample hides what
    # samples do to each other.
    for change in (first, noise, batch):
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
    """The largest |f(x) − g(x)| / max |f(x)| over all outputs, on two inputs and, where f takes
    one, on a batch; infinite where a shape differs."""
    like = next(one.parameters(), torch.zeros((), dtype=torch.float64))
    worst = 0.0
    for number, sample in enumerate(samples(example, like)):
        try:
            wanted = _kept_run(one, sample)
        except Exception:
            if number < 2:
                raise
            continue  # it takes one sample at a time
        pairs = zip(leaves(wanted), leaves(_kept_run(other, sample)), strict=True)
        worst = max([worst, *(relative(a, b) for a, b in pairs)])
    return worst


def _kept_run(model: nn.Module, example: Example) -> object:
    """A run that leaves the model, and all it holds, as it was: it may be what is given back."""
    with untouched(model):
        return run(model, example)


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
