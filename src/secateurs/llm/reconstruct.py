"""Pruned layers made to answer as before: their kept weights solved for on real inputs.

Which weights are cut is one question; what becomes of the others is another. For a layer with
inputs X (what the pruned layers before it give), weights W and a mask, the weights V on the mask
that minimise ‖X(V − W)ᵀ‖ are a least-squares problem for each row. Layers are taken in the order in
which they are called. Those that are given the same tensor (query, key and value) share one matrix
H = XᵀX, and no more than one is held at a time. A convolution is a linear layer whose inputs are
the patches that it sees, group by group.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from secateurs.base.convolved import CONVOLUTIONS, Arguments, Convolving, convolves_plainly
from secateurs.base.interrupts import Uninterrupted
from secateurs.errors import ScoreError
from secateurs.llm.least_squares import energies, products, solve_together
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
def reconstruct_block_(
    block: nn.Module, masks: Mapping[str, Tensor], runs: Runs
) -> Iterator[tuple[str, Reconstruction | str]]:
    """Apply the masks of a block and solve for what they keep, layer by layer; yields each
    parameter's name with what was done, or why it was only masked.
    """
    layers, missed = layers_of(block, masks, convolutions=True)
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
    *,
    dense: tuple[Tensor, Tensor] | None = None,
) -> Reconstruction | str:
    """Solve for the kept weights of one layer, some rows at a time, and write them.

    `dense` has ZᵀX and ZᵀZ, where the layer shall answer as it would have answered other inputs Z.
    """
    parameter = layer.get_parameter("weight")
    weights, kept = by_group(layer, parameter), by_group(layer, mask)
    most = int(kept.sum(2).max())
    # With fewer inputs than unknowns a row is underdetermined, and would be fitted to noise.
    if gram is None or samples < most:
        parameter.copy_(torch.where(mask, parameter, 0.0))
        return (
            f"was masked and not reconstructed: it met {samples} inputs, too few to solve for"
            f" {most} weights a row"
        )
    means = refuse_infinite(gram, name)
    shares, sums = [DAMPING], torch.zeros(3, dtype=torch.float64)
    for groups, rows in _pieces(*weights.shape):
        place = weights[groups, rows]
        wide, keep = place.to(wide_dtype(place)), kept[groups, rows]
        squares, mean, pull = gram[groups], means[groups, None, None], None
        asked = squares
        if dense is not None:
            # Z of the dense network: its answers are ZWᵀ.
            cross, asked = (each[groups] for each in dense)
            pull = wide @ (cross - squares)
        masked = torch.where(keep, wide, 0.0)
        share, done = 0.1 * DAMPING, False
        # More damping makes the equations easier; the result says how much it took.
        while not done and share < 1:
            share *= 10
            solved, done = solve_together(wide, keep, squares, share * mean, pull)
        whole, before = energies(wide, asked), energies(masked - wide, squares)
        after = energies(solved - wide, squares)
        if pull is not None:
            # ‖XVᵀ − ZWᵀ‖² = ‖X(V − W)ᵀ‖² − 2 (V − W)·W(C − H) + ‖(X − Z)Wᵀ‖²
            apart = energies(wide, squares + asked - cross - cross.mT)
            before = (before - 2 * products(masked - wide, pull)[..., 0] + apart).clamp(min=0)
            after = (after - 2 * products(solved - wide, pull)[..., 0] + apart).clamp(min=0)
        # Never worse than the mask alone, and never NaN.
        better = (after <= before)[..., None] & solved.isfinite()
        # `wide` may be these very rows, so nothing is measured of it from here on.
        place.copy_(torch.where(better, solved, masked))
        best = torch.minimum(before, after.nan_to_num(math.inf))
        sums += torch.stack([each.sum() for each in (whole, before, best)]).cpu()
        shares.append(share)
    if weights.data_ptr() != parameter.data_ptr():
        parameter.copy_(weights.reshape(parameter.shape))
    answer, masked_off, off = sums.tolist()
    return Reconstruction(
        masked=math.sqrt(masked_off / answer) if answer else 0.0,
        error=math.sqrt(off / answer) if answer else 0.0,
        damping=max(shares),
        samples=samples,
    )


def refuse_infinite(gram: Tensor, name: str) -> Tensor:
    """The mean of the diagonal of each H, which is a number."""
    means = gram.diagonal(dim1=1, dim2=2).mean(1)
    if not means.isfinite().all():
        raise ScoreError(
            f"the inputs of {name!r} hold NaN or infinite values, so its weights cannot be"
            " reconstructed: look at the batch, or run the model in float32 or bfloat16."
        )
    return means


def _pieces(groups: int, rows: int, inputs: int) -> Iterator[tuple[slice, slice]]:
    """Which groups and rows are solved for together."""
    length = rows_together(inputs)
    step = max(1, length // rows)
    for first in range(0, groups, step):
        for start in range(0, rows, length):
            yield slice(first, first + step), slice(start, start + length)


PIECE = 1 << 18
"""Entries of the rows that are solved together: some seven matrices of so many are held."""
ROWS = 64
"""At least so many rows together: with fewer, reading H takes longer than the products."""


def rows_together(inputs: int) -> int:
    """How many rows of this many inputs are solved at a time."""
    return max(ROWS, PIECE // inputs)


# Which layers can be solved for, in which order they run, and what they are given.


def layers_of(
    block: nn.Module, names: Iterable[str], *, convolutions: bool = False
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layer of each weight that can be solved for, and of every other why it cannot."""
    owners = {
        id(parameter): module
        for module in block.modules()
        # Under a parametrisation the attribute would be computed, and not written to.
        for key, parameter in module._parameters.items()
        if key == "weight"
        and parameter is not None
        and (lies_along(module) or (convolutions and isinstance(module, CONVOLUTIONS)))
    }
    kinds = "linear layer or a convolution" if convolutions else "linear layer"
    found, missed = dict[str, nn.Module](), dict[str, str]()
    parameters = dict(block.named_parameters())
    for name in names:
        owner = owners.get(id(parameters[name]))
        if owner is None:
            missed[name] = f"it is not the weight of a {kinds}"
        else:
            found[name] = owner
    return found, missed


def by_group(layer: nn.Module, tensor: Tensor) -> Tensor:
    """A weight or its mask as (groups, outputs, inputs): the rows of a group share their inputs."""
    if isinstance(layer, CONVOLUTIONS):
        return tensor.reshape(layer.groups, len(tensor) // layer.groups, -1)
    return (tensor.T if lies_along(layer) == "rows" else tensor)[None]


PATCHES = 1 << 24
"""Numbers of patches that are held at a time."""


def rows_given(layer: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """What the rows of the weight multiply, (groups, samples, inputs), in pieces."""
    if not isinstance(layer, CONVOLUTIONS):
        yield x.reshape(1, -1, x.shape[-1]).to(wide_dtype(x))
        return
    # One image without a dimension for the batch is allowed.
    x = x if x.ndim == layer.weight.ndim else x[None]
    # At stride 1 an image has as many patches as places.
    step = max(1, PATCHES // max(1, x[0].numel() * math.prod(layer.kernel_size)))
    for part in torch.split(x, step):
        yield _patches(layer, part)


def _patches(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """The patches that a convolution multiplies its kernels with: (groups, patches, inputs)."""
    dims = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x.to(wide_dtype(x)), list(layer._reversed_padding_repeated_twice), mode=mode)
    for dim in range(dims):
        reach = (layer.kernel_size[dim] - 1) * layer.dilation[dim] + 1
        x = x.unfold(2 + dim, reach, layer.stride[dim])[..., :: layer.dilation[dim]]
    # (images, channels, places.., kernel..) → (groups, images, places.., channels, kernel..)
    x = torch.unflatten(x, 1, (layer.groups, -1)).movedim(1, 0).movedim(2, 2 + dims)
    return x.flatten(2 + dims).flatten(1, 1 + dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Weights that meet the same inputs; `once` says that a batch calls their layers once, and
    `entries` how many numbers the first batch gave them.
    """

    names: tuple[str, ...]
    once: bool
    entries: int = 0


def stages_of(layers: Mapping[str, nn.Module], run: Callable[[], object]) -> list[Stage]:
    """The weights in the order in which their layers run, together where they meet the same."""
    met: dict[str, list[object]] = {name: [] for name in layers}
    # Held while the block runs: memory that is used again would look like the same tensor.
    held: list[Tensor] = []

    def note(name: str, x: Tensor) -> None:
        held.append(x)
        place = (x.data_ptr(), x.shape, x.stride(), x._version)
        met.setdefault(name, []).append((place, _view(layers[name])))
        order.setdefault(name, len(order))
        sizes[name] = x.numel()

    order: dict[str, int] = {}
    sizes: dict[str, int] = {}
    with _watching(layers, note):
        run()
    together: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(order, key=order.__getitem__):
        together.setdefault(tuple(met[name]), []).append(name)
    # Layers that this batch does not reach, such as an expert that gets no token, come last.
    return [
        Stage(names=tuple(names), once=len(met[names[0]]) == 1, entries=sizes[names[0]])
        for names in together.values()
    ] + [Stage(names=(name,), once=False) for name in layers if name not in order]


def _view(layer: nn.Module) -> tuple[object, ...]:
    """How a layer looks at what it is given: two convolutions may see other patches of it."""
    if not isinstance(layer, CONVOLUTIONS):
        return ()
    sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return (*map(_sizes, sizes), layer.groups, layer.padding_mode)


class _Collected(Exception):
    """The watched layer has been called: the rest of the block need not run."""


def gram_of(layer: nn.Module, runs: Runs, *, once: bool) -> tuple[Tensor | None, int]:
    """H = XᵀX of everything that each group of the layer is given, in single precision at least,
    and how many inputs that were; None where it is never called.
    """
    gram: Tensor | None = None
    samples = 0
    for run in runs:
        for x in inputs_of(layer, run, once=once):
            for rows in rows_given(layer, x):
                samples += rows.shape[1]
                gram = rows.mT @ rows if gram is None else gram.baddbmm_(rows.mT, rows)
    return gram, samples


def inputs_of(layer: nn.Module, run: Callable[[], object], *, once: bool) -> list[Tensor]:
    """What the layer is given in one run."""
    given: list[Tensor] = []

    def keep(_: str, x: Tensor) -> None:
        given.append(x)
        if once:
            raise _Collected

    with _watching({"": layer}, keep), suppress(_Collected):
        run()
    return given


def inputs_together(
    layers: Mapping[str, nn.Module], run: Callable[[], object]
) -> dict[str, list[Tensor]]:
    """What each of the layers is given where it is first called in one run, which ends there."""
    given: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str, x: Tensor) -> None:
        if not given[name]:
            # A later operation may work in its place.
            given[name].append(x.clone())
        if all(given.values()):
            raise _Collected

    with _watching(layers, keep), suppress(_Collected):
        run()
    return given


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

    own = {
        name: layer
        for name, layer in layers.items()
        if isinstance(layer, CONVOLUTIONS) and not convolves_plainly(layer)
    }
    weights = {name: layer.weight for name, layer in own.items()}

    def as_it_says(name: str, _: object, given: Arguments) -> None:
        if _as_it_says(own[name], given):
            see(name, given["input"].detach())

    handles = list[RemovableHandle]()
    try:
        with Uninterrupted():
            for name, layer in layers.items():
                if name not in own:
                    handles.append(layer.register_forward_pre_hook(hook(name), with_kwargs=True))
        with Convolving(weights, as_it_says) if own else nullcontext():
            yield
    finally:
        with Uninterrupted():
            for handle in handles:
                handle.remove()


def _as_it_says(layer: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether a call of conv2d has what the layer's attributes say."""
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    for name, value in usual.items():
        own, asked = _sizes(getattr(layer, name)), _sizes(given.get(name, value))
        if own != (asked * len(own) if len(asked) == 1 else asked):
            return False
    return bool(layer.padding_mode == "zeros")


def _sizes(value: Any) -> tuple[Any, ...]:
    """A size, or one of each dimension: layers of others keep lists."""
    return (value,) if isinstance(value, int | str) else tuple(value)
