"""Data for scores without data: noise with the data's mean and standard deviation, and targets for
it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from secateurs.base.random import normal
from secateurs.base.registry import Registry
from secateurs.errors import ArgumentError
from secateurs.scores.rules.synflow import chi

Statistic: TypeAlias = float | Sequence[float] | Tensor
"""One number, or one per channel."""

Noise: TypeAlias = Callable[[Tensor, torch.Generator | None], Tensor]
"""Standardised inputs in the shape, dtype and device of a tensor of examples."""

PROBES: Registry[Noise] = Registry("probe")
"""Every kind of probe by name."""


def probe(
    kind: str,
    like: Tensor,
    *,
    examples: int = 256,
    mean: Statistic = 0.0,
    std: Statistic = 1.0,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """A batch `(x, y)` that needs no data, for any score that asks for one.

    `like` is a batch whose second and later dimensions, dtype and device the inputs take. Kinds:
    "random", normal numbers with the data's mean and standard deviation (one number or one per
    channel, dimension 1); "sparse", the same, but at each input position exactly one image of the
    batch is non-zero; "chi", ‖128 normals‖₂/√128; "ones". The last two take no mean or standard
    deviation. With `classes`, y holds random labels; without, y is 0 for each example and `l1` is
    the loss to use. Reference: Bar & Giryes 2023, sections 5, 6 and 8.

    >>> x, y = probe("sparse", torch.empty(1, 3, 8, 8), examples=16, classes=10)
    >>> bool(((x != 0).sum(0) == 1).all()), tuple(x.shape), tuple(y.shape)
    (True, (16, 3, 8, 8), (16,))
    """
    if examples < 1 or (classes is not None and classes < 1):
        raise ArgumentError(
            f"examples is {examples} and classes {classes}; both must be at least 1."
        )
    if not like.is_floating_point() or like.ndim < 2:
        raise ArgumentError(
            f"like is {like.dtype} of shape {tuple(like.shape)}; give a batch of floating-point"
            " inputs."
        )
    empty = like.new_empty((examples, *like.shape[1:]))
    noise = PROBES[kind](empty, generator)
    if kind in ("random", "sparse"):
        noise = _standardise(
            noise,
            _per_channel(mean, like, "mean"),
            _positive(_per_channel(std, like, "std")),
            kind,
        )
    return noise, _targets(like, examples, classes, generator)


def l1(output: Tensor, target: Tensor) -> Tensor:
    """Mean over the examples of Σ_k |output_k − target_k|; integer targets are labels, taken as
    one-hot vectors.

    For a linear model on sparse data SNIP with this loss is |w_j|·‖X_(j)‖, the optimal sketching
    probabilities (Bar & Giryes 2023, section 6).
    """
    if not target.is_floating_point():
        target = one_hot(target, output.shape[-1]).to(output.dtype)
    # Summed over outputs, averaged over examples: the loss of the paper's section 6.
    return (output - target).abs().flatten(1).sum(1).mean()


@PROBES.register("random")
def _random(empty: Tensor, generator: torch.Generator | None) -> Tensor:
    return normal(empty, generator=generator)


@PROBES.register("sparse")
def _sparse(empty: Tensor, generator: torch.Generator | None) -> Tensor:
    """NaN marks the positions that stay zero."""
    values = normal(empty[:1], generator=generator)
    source = empty.device if generator is None else generator.device
    image = torch.randint(len(empty), values.shape, generator=generator, device=source).to(
        empty.device
    )
    # NaN and not 0, since a mean is added before the rest is set to 0.
    return torch.full_like(empty, torch.nan).scatter_(0, image, values)


@PROBES.register("chi")
def _chi(empty: Tensor, generator: torch.Generator | None) -> Tensor:
    return chi(empty, generator)


@PROBES.register("ones")
def _ones(empty: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.ones_like(empty)


def _standardise(noise: Tensor, mean: Tensor, std: Tensor, kind: str) -> Tensor:
    scaled = noise * std + mean
    if kind == "random":
        return scaled
    # A draw of exactly zero would leave its position without an image.
    scaled = torch.where(scaled == 0, std, scaled)
    return scaled.nan_to_num_(nan=0.0)


def _per_channel(value: Statistic, like: Tensor, name: str) -> Tensor:
    numbers = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if numbers.ndim > 1 or (numbers.ndim == 1 and numbers.numel() not in (1, like.shape[1])):
        raise ArgumentError(
            f"{name} has shape {tuple(numbers.shape)}; give one number or one for each of "
            f"{like.shape[1]} channels."
        )
    return numbers.reshape(1, -1, *[1] * (like.ndim - 2))


def _positive(std: Tensor) -> Tensor:
    if not bool((std > 0).all()):
        raise ArgumentError(f"std is {std.flatten().tolist()}; it must be positive.")
    return std


def _targets(
    like: Tensor,
    examples: int,
    classes: int | None,
    generator: torch.Generator | None,
) -> Tensor:
    if classes is None:
        return like.new_zeros(examples, 1)
    source = like.device if generator is None else generator.device
    return torch.randint(classes, (examples,), generator=generator, device=source).to(like.device)
