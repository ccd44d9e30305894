"""Options that would be ignored are refused."""

import numpy as np
import pytest
import torch
from torch import nn

import secateurs as sc
from proof.pairs import pair
from secateurs.errors import ArgumentError, SecateursError
from secateurs.proof.certify import settings


def test_held_out_data_are_refused_with_the_function_that_takes_them():
    x = torch.randn(40, 3)
    for domain in ({}, {"around": x, "radius": 0.1}, {"radius": 0.1, "alpha": 0.1}):
        with pytest.raises(ArgumentError, match=r"statistical\(dense, sparse, data=.*around="):
            sc.certify(*pair(), data=x, **domain)


WRONG = [
    *({"seconds": value} for value in ("5", 0, -1, float("nan"), True)),
    *({"effort": value} for value in ("1e9", 0, float("nan"), None)),
    *({"restarts": value} for value in (-1, 2.5, "4", None)),
    *({"steps": value} for value in (-1, 2.5, True)),
    *({"symbols": value} for value in (0, -3, 2.5, "9")),
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_a_value_that_is_no_such_number_is_refused_by_its_name(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        settings(options)


def test_a_misspelt_keyword_is_refused_with_the_nearest_of_all():
    dense, sparse = pair()
    told = "no keyword of certify 'raduis'. Did you mean 'radius'"
    with pytest.raises(ArgumentError, match=told):
        sc.certify(dense, sparse, around=torch.zeros(1, 3), raduis=0.1)


def test_what_numpy_and_torch_call_a_number_is_one():
    given = settings({"seconds": np.float32(2.0), "restarts": np.int64(3)})
    assert (given.limit, given.restarts) == (2.0, 3)


def test_a_refusal_names_what_takes_any_two_modules():
    f, g = nn.Sequential(nn.Linear(3, 2), nn.GELU()), nn.Linear(3, 2)
    box = (torch.zeros(1, 3), torch.ones(1, 3))
    for both in ((f, f), (g, nn.Sequential(nn.Linear(3, 2), nn.ReLU()))):
        with pytest.raises(SecateursError, match=r"statistical\(dense, sparse, data=\.\.\.\)"):
            sc.certify(*both, box=box)
