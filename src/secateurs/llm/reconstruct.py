"""Pruned layers of a block made to answer as before: their kept weights solved for on real inputs.

Which weights are cut is one question; what becomes of the others is another. For a layer with
inputs X (what the pruned layers before it give), weights W and a mask, the weights V on the mask
that minimise ‖X(V − W)ᵀ‖ are a least-squares problem for each row. Layers are taken in the order in
which the block calls them. Those that are given the same tensor (query, key and value) share one
matrix H = XᵀX, and no more than one is held at a time.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ScoreError
from secateurs.llm.least_squares import energies, solve_together
from secateurs.scores.rules.wanda import lies_along
from secateurs.scores.task import wide_dtype

DAMPING = 0.01
"""δ as a share of the mean of H's diagonal, as in SparseGPT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What solving for the kept weights of one layer did.

    Attributes:
        masked: The error of the layer's outputs with the weights as the mask leaves them, as a
            share of the outputs.
        error: The same after solving.
        damping: δ that was added to the diagonal of H, as a share of its mean.
        samples: How many inputs (tokens) the layer met.
    """

    masked: float
    error: float
    damping: float
    samples: int


Runs = Sequence[Callable[[], object]]
"""What runs the block, once for each batch."""


@torch.no_grad()
def reconstruct_(
    block: nn.Module, masks: Mapping[str, Tensor], runs: Runs
) -> Iterator[tuple[str, Reconstruction | str]]:
    """Apply the masks of a block and solve for what they keep, layer by layer; yields each
    parameter's name with what was done, or why it was only masked.
    """
    layers, missed = layers_of(block, masks)
    parameters = dict(block.named_parameters())
    for name, why in missed.items():
        parameter = parameters[name]
        parameter.copy_(torch.where(masks[name], parameter, 0.0))
        yield name, f"was masked and not reconstructed: {why}"
    for stage in stages_of(layers, runs[0]):
        gram, samples = gram_of(layers[stage.names[0]], runs, once=stage.once)
        for name in stage.names:
            yield name, solve_(name, layers[name], masks[name], gram, samples)
        # Freed before that of the next stage is made.
        del gram


def solve_(
    name: str,
    layer: nn.Module,
    mask: Tensor,
    gram: Tensor | None,
    samples: int,
) -> Reconstruction | str:
    """Solve for the kept weights of one layer, some rows at a time, and write them."""
    parameter = layer.get_parameter("weight")
    turned = lies_along(layer) == "rows"
    weights, kept = (parameter.T, mask.T) if turned else (parameter, mask)
    most = int(kept.sum(1).max())
    # With fewer inputs than unknowns a row is underdetermined, and would be fitted to noise.
    if gram is None or samples < most:
        parameter.copy_(torch.where(mask, parameter, 0.0))
        return (
            f"was masked and not reconstructed: it met {samples} inputs, too few to solve for"
            f" {most} weights a row"
        )
    mean = refuse_infinite(gram, name)
    shares, sums = [DAMPING], torch.zeros(3, dtype=torch.float64)
    length = rows_together(weights.shape[1])
    for rows, keep in zip(torch.split(weights, length), torch.split(kept, length), strict=True):
        wide = rows.to(wide_dtype(rows))
        masked = torch.where(keep, wide, 0.0)
        share, done = 0.1 * DAMPING, False
        # More damping makes the equations easier; the result says how much it took.
        while not done and share < 1:
            share *= 10
            solved, done = solve_together(wide, keep, gram, share * mean)
        whole, before = energies(wide, gram), energies(masked - wide, gram)
        after = energies(solved - wide, gram)
        # Never worse than the mask alone, and never NaN.
        better = (after <= before)[:, None] & solved.isfinite()
        # `wide` may be these very rows, so nothing is measured of it from here on.
        rows.copy_(torch.where(better, solved, masked))
        best = torch.minimum(before, after.nan_to_num(math.inf))
        sums += torch.stack([each.sum() for each in (whole, before, best)]).cpu()
        shares.append(share)
    answer, masked_off, off = sums.tolist()
    return Reconstruction(
        masked=math.sqrt(masked_off / answer) if answer else 0.0,
        error=math.sqrt(off / answer) if answer else 0.0,
        damping=max(shares),
        samples=samples,
    )


def refuse_infinite(gram: Tensor, name: str) -> float:
    """The mean of the diagonal of H, which is a number."""
    mean = float(gram.diagonal().mean())
    if not math.isfinite(mean):
        raise ScoreError(
            f"the inputs of {name!r} hold NaN or infinite values, so its weights cannot be"
            " reconstructed: look at the batch, or run the model in float32 or bfloat16."
        )
    return mean


PIECE = 1 << 18
"""Entries of the rows that are solved together: some seven matrices of so many are held."""
ROWS = 64
"""At least so many rows together: with fewer, reading H takes longer than the products."""


def rows_together(inputs: int) -> int:
    """How many rows of this many inputs are solved at a time."""
    return max(ROWS, PIECE // inputs)


# Which layers can be solved for, in which order they run, and what they are given.


def layers_of(
    block: nn.Module, names: Iterable[str]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layer of each weight that can be solved for, and of every other why it cannot."""
    owners = {
        id(parameter): module
        for module in block.modules()
        # Under a parametrisation the attribute would be computed, and not written to.
        for key, parameter in module._parameters.items()
        if key == "weight" and parameter is not None and lies_along(module)
    }
    found, missed = dict[str, nn.Module](), dict[str, str]()
    parameters = dict(block.named_parameters())
    for name in names:
        owner = owners.get(id(parameters[name]))
        if owner is None:
            missed[name] = "it is not the weight of a linear layer"
        else:
            found[name] = owner
    return found, missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Weights that meet the same inputs; `once` says that a batch calls their layers once."""

    names: tuple[str, ...]
    once: bool


def stages_of(layers: Mapping[str, nn.Module], run: Callable[[], object]) -> list[Stage]:
    """The weights in the order in which their layers run, together where they meet the same."""
    met: dict[str, list[object]] = {name: [] for name in layers}
    # Held while the block runs: memory that is used again would look like the same tensor.
    held: list[Tensor] = []

    def note(name: str, x: Tensor) -> None:
        held.append(x)
        met.setdefault(name, []).append((x.data_ptr(), x.shape, x.stride(), x._version))
        order.setdefault(name, len(order))

    order: dict[str, int] = {}
    with _watching(layers, note):
        run()
    together: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(order, key=order.__getitem__):
        together.setdefault(tuple(met[name]), []).append(name)
    # Layers that this batch does not reach, such as an expert that gets no token, come last.
    return [
        Stage(names=tuple(names), once=len(met[names[0]]) == 1) for names in together.values()
    ] + [Stage(names=(name,), once=False) for name in layers if name not in order]


class _Collected(Exception):
    """The watched layer has been called: the rest of the block need not run."""


def gram_of(layer: nn.Module, runs: Runs, *, once: bool) -> tuple[Tensor | None, int]:
    """H = XᵀX of everything that the layer is given, in single precision at least, and how many
    inputs that were; None where it is never called.
    """
    gram: Tensor | None = None
    samples = 0

    def add(_: str, x: Tensor) -> None:
        nonlocal gram, samples
        rows = x.reshape(-1, x.shape[-1]).to(wide_dtype(x))
        samples += len(rows)
        if gram is None:
            gram = rows.T @ rows
        else:
            gram.addmm_(rows.T, rows)
        if once:
            raise _Collected

    with _watching({"": layer}, add):
        for run in runs:
            with suppress(_Collected):
                run()
    return gram, samples


@contextmanager
def _watching(
    layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Call `see` with the name and the input of every layer that runs."""

    def hook(name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: Any, named: dict[str, Any]) -> None:
            # A layer may be called by keyword: layer(input=x).
            see(name, signature(module.forward).bind(*args, **named).args[0].detach())

        return before

    handles = [
        layer.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
