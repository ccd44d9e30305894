"""What the tests of Theorems 1 to 3 share: settings and simulated networks."""

import math

import torch

from secateurs.theory import (
    LATALA_MEASURED,
    ConvSetting,
    NormBounds,
    theorem_2,
    theorem_3,
    uniform_norm_bound,
)


def prune_smallest(weights, count):
    """The magnitude scheme of Theorem 1 on a batch: the `count` smallest entries of each matrix
    become zero.
    """
    flat = weights.flatten(1).clone()
    flat.scatter_(1, flat.abs().topk(count, dim=1, largest=False).indices, 0.0)
    return flat.view_as(weights)


def random_claim(widths, alpha, **options):
    failure = 0.001
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    bounds = [uniform_norm_bound(*s, bound=1 / math.sqrt(max(s)), failure=failure) for s in shapes]
    norms = NormBounds(bounds=tuple(bounds), failures=(failure,) * len(bounds))
    return theorem_2(widths, alpha=alpha, norms=norms, k1=1 / 3, k2=1 / 5, **options)


CONV = ConvSetting(depth=3, channels=64, kernel=3, map_size=32, input_channels=3)
SQUARE = (128, 128, 128, 128)


def batches(count, size, draw):
    return torch.cat([draw(size) for _ in range(count // size)])


def stated_2(width, *, alpha, scale, failure=0.001, as_printed=False):
    """Theorem 2 as stated for four equal widths and uniform entries on ±K/√d; square layers, hence
    Lemma 4 with 2/3.
    """
    bound = uniform_norm_bound(width, width, bound=scale / math.sqrt(width), failure=failure)
    norms_ = NormBounds(bounds=(bound,) * 3, failures=(failure,) * 3)
    return theorem_2(
        [width] * 4,
        alpha=alpha,
        norms=norms_,
        k1=scale**2 / 3,
        k2=scale**4 / 5,
        constant=LATALA_MEASURED,
        as_printed=as_printed,
        require=False,
    )


SMALL_CONV = ConvSetting(depth=3, channels=32, kernel=3, map_size=8, outputs=4)


def stated_3(setting, *, scale, alpha, beta1, beta2, as_printed=False):
    """Theorem 3 as stated, uniform filters on ±K/(p√d) and a linear layer on ±K/(p²√d), for which
    C5 is proven.
    """
    last = 1 + math.sqrt(setting.outputs / (setting.map_size**2 * setting.channels))
    return theorem_3(
        setting,
        alpha=alpha,
        beta1=beta1,
        beta2=beta2,
        c1=scale**2 / 3,
        c2=scale**4 / 5,
        c5=math.sqrt(2 * math.pi) / 4 * scale * last,
        constant=LATALA_MEASURED,
        as_printed=as_printed,
        require=False,
    )
