"""What a certificate prints, and its JSON."""

import json
import math

import torch
from torch import nn

import secateurs as sc
from secateurs.certificates.methods import automatic
from tiny_networks import (
    pruned,
)


def test_json_and_tables(dense, generator, x):
    cert = sc.certify(dense, pruned(dense, generator), around=x, radius=0.1, data=x)
    told = json.loads(cert.to_json())
    assert told["bound"] == cert.bound
    assert told["statistical"]["samples"] == 4
    assert told["domain"] == "4 ℓ∞-balls of radius 0.1"
    assert cert.__rich__().row_count == len(automatic())
    assert str(cert).startswith("‖f − g‖_∞ ≤ ")


def test_an_unbounded_bound_is_null_in_json(generator):
    deep = nn.Sequential(
        *[layer for _ in range(40) for layer in (nn.Linear(1, 1), nn.ReLU())]
    ).double()
    with torch.no_grad():
        for parameter in deep.parameters():
            parameter.fill_(1e10)
    cert = sc.certify(
        deep,
        pruned(deep, generator),
        box=(torch.zeros(1, 1), torch.ones(1, 1)),
        restarts=0,
        steps=0,
    )
    assert cert.bound == math.inf
    assert json.loads(cert.to_json())["bound"] is None
