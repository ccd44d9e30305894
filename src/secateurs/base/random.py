"""Generators and draws: the same seed gives the same numbers, on any device and any number of
threads.
"""

import hashlib

import torch
from torch import Tensor

from secateurs.errors import ArgumentError


def generator(seed: int, purpose: str = "") -> torch.Generator:
    """A CPU generator for one purpose of one run.

    Different purposes of one seed give independent streams, so that drawing one mask more does not
    change the initialisation.

    >>> a, b = generator(0, "masks"), generator(0, "masks")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    # Hashed, so that neighbouring seeds, and purposes of one seed, have nothing in
    # common.
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


WITHOUT_FLOAT64 = {"mps"}
"""Kinds of devices that have no numbers of double precision: single ones are drawn there."""


def uniform(
    like: Tensor,
    *,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Uniform numbers on [0, 1) in the shape of `like`, drawn on the generator's device, returned
    on `like`'s.
    """
    source = _source(generator, like)
    if {source.type, like.device.type} & WITHOUT_FLOAT64 and dtype == torch.float64:
        dtype = torch.float32
    return torch.rand(like.shape, generator=generator, dtype=dtype, device=source).to(like.device)


def normal(
    like: Tensor,
    *,
    generator: torch.Generator | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Standard normal numbers in the shape of `like`, drawn on the generator's device, returned on
    `like`'s.
    """
    return torch.randn(
        like.shape,
        generator=generator,
        dtype=dtype or like.dtype,
        device=_source(generator, like),
    ).to(like.device)


def _source(generator: torch.Generator | None, like: Tensor) -> torch.device:
    check_generator(generator)
    # On the generator's own device: the same seed then gives the same numbers for any
    # tensor.
    return like.device if generator is None else generator.device


def check_generator(generator: object) -> None:
    """Refuse what is not a generator; a whole number is most likely meant as its seed."""
    if generator is None or isinstance(generator, torch.Generator):
        return
    way = f"torch.Generator().manual_seed({generator})" if isinstance(generator, int) else "None"
    raise ArgumentError(
        f"generator={generator!r} is a {type(generator).__name__}, not a torch.Generator: give"
        f" {way}."
    )
