"""What `certify` takes, refuses and leaves alone."""

import copy
import math

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import (
    ArgumentError,
    DomainError,
    ParameterError,
    StructureMismatch,
    UnknownNameError,
    UnsupportedOperation,
)
from tiny_networks import (
    ConvBatchNorm,
    pruned,
    randomize,
)


def test_same_generator_same_certificate(dense, generator, x):
    sparse = pruned(dense, generator)
    certs = [
        sc.certify(
            dense,
            sparse,
            around=x,
            radius=0.5,
            generator=torch.Generator().manual_seed(3),
        ).to_json()
        for _ in range(2)
    ]
    assert certs[0] == certs[1]


def test_the_models_stay_as_they_were(dense, generator, x):
    sparse = pruned(dense, generator)
    before = [copy.deepcopy(model.state_dict()) for model in (dense, sparse)]
    sc.certify(dense, sparse, around=x, radius=0.1)
    for model, state in zip((dense, sparse), before, strict=True):
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"radius": 0.1}, DomainError, "no domain was given"),
        ({"around": "x"}, DomainError, "around= needs radius="),
        (
            {"around": "x", "radius": -0.1},
            DomainError,
            "radius=-0.1: a radius is a finite number ≥ 0",
        ),
        ({"around": "x", "radius": math.nan}, DomainError, "radius=nan"),
        ({"around": "x", "radius": math.inf}, DomainError, "radius=inf"),
        ({"around": [1.0], "radius": 0.1}, DomainError, "around is list"),
        ({"around": "nan", "radius": 0.1}, DomainError, "around holds NaN"),
        (
            {"around": "x", "radius": 0.1, "clip": (1.0, 0.0)},
            DomainError,
            "give the smaller bound first",
        ),
        (
            {"around": "x", "radius": 0.1, "clip": (0.0, 0.1)},
            DomainError,
            "around has values outside clip",
        ),
        (
            {"box": (1.0, 0.0), "example": "x"},
            DomainError,
            r"lo > hi at 5 coordinates, first at \(0, 0\): 1 > 0",
        ),
        ({"box": (0.0, 1.0)}, ArgumentError, "give example="),
        ({"box": (0.0,)}, DomainError, "give a pair"),
        (
            {"box": (torch.zeros(1, 5), torch.zeros(1, 4))},
            DomainError,
            r"lo has shape \(1, 5\) and hi \(1, 4\)",
        ),
        (
            {"box": (torch.zeros(1, 4), torch.ones(1, 4)), "example": "x"},
            DomainError,
            r"the example has \(4, 5\)",
        ),
        (
            {"box": (0.0, 1.0), "example": "x", "radius": 1.0},
            ArgumentError,
            "but not both",
        ),
        (
            {"around": "x", "box": (0.0, 1.0), "example": "x"},
            ArgumentError,
            "but not both",
        ),
        (
            {"around": "x", "radius": 0.1, "norm": 3},
            ArgumentError,
            "norm=3 is not offered",
        ),
        (
            {"around": "x", "radius": 0.1, "rounding": "yes"},
            ArgumentError,
            "rounding='yes'",
        ),
        (
            {"around": "x", "radius": 0.1, "restarts": -1},
            ArgumentError,
            "restarts=-1",
        ),
        (
            {"around": "x", "radius": 0.1, "methods": "linaer"},
            UnknownNameError,
            "Did you mean 'linear'",
        ),
        (
            {"around": "x", "radius": 0.1, "methods": []},
            ArgumentError,
            "methods is empty",
        ),
        (
            {"around": "x", "radius": 0.1, "alpha": 0.1},
            ArgumentError,
            "no keyword of certify 'alpha'",
        ),
        ({"around": "complex", "radius": 0.1}, DomainError, "give a real-valued tensor"),
        ({"around": "none", "radius": 0.1}, DomainError, "holds no input"),
    ],
)
def test_bad_domains_and_options(options, error, text, dense, generator, x):
    known = {
        "x": x,
        "nan": torch.full_like(x, torch.nan),
        "complex": x.to(torch.complex64),
        "none": torch.zeros(0, 5),
    }
    given = {k: known.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(error, match=text):
        sc.certify(dense, pruned(dense, generator), **given)


def test_models_that_cannot_be_compared(dense, generator, x):
    shape = {"around": x, "radius": 0.1}
    wide = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(StructureMismatch):
        sc.certify(dense, wide, **shape)
    with pytest.raises(StructureMismatch):
        sc.certify(dense, nn.Sequential(*dense[:3], nn.LeakyReLU(0.5), dense[4]), **shape)
    with pytest.raises(UnsupportedOperation, match="gelu"):
        sc.certify(nn.Sequential(nn.Linear(5, 3), nn.GELU()), dense, **shape)
    bad = copy.deepcopy(dense)
    bad[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ParameterError, match=r"0\.weight .* NaN"):
        sc.certify(dense, bad, **shape)
    with pytest.raises(UnsupportedOperation, match="eval"):
        sc.certify(
            randomize(ConvBatchNorm(), generator).train(),
            ConvBatchNorm(),
            box=(0.0, 1.0),
            example=torch.zeros(1, 2, 5, 5),
        )
    with pytest.raises(ValueError, match="does not run on an example"):
        sc.certify(dense, dense, around=torch.zeros(1, 4), radius=0.1)
