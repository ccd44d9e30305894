"""What a report counts and says."""

import io
import json
import math

import pytest
import torch
from rich.console import Console
from torch import nn

from masks.choices import Tied
from secateurs.errors import EmptySelectionError, MaskError
from secateurs.masks import apply_, sparsity_report


def test_report_counts_tied_parameters_once():
    model = Tied()
    apply_(model, {"first.weight": torch.eye(4).bool()})
    report = sparsity_report(model)
    assert [(t.name, t.kept, t.total, t.aliases) for t in report.tensors] == [
        ("first.weight", 4, 16, ("second.weight",)),
        ("conv.weight", 54, 54, ()),
    ]
    assert (report.total.kept, report.total.total) == (58, 70)
    assert (
        report.density == 58 / 70
        and report.sparsity == 1 - 58 / 70
        and report.compression == 70 / 58
    )


def test_report_of_masks_and_of_mappings():
    model, masks = Tied(), {"first.weight": torch.zeros(4, 4, dtype=torch.bool)}
    assert sparsity_report(model, masks=masks).collapsed == ("first.weight",)
    assert sparsity_report(masks).density == 0
    assert sparsity_report({}).density == 1
    with pytest.raises(MaskError):
        sparsity_report(model, masks={"second.weight": masks["first.weight"]})
    with pytest.raises(EmptySelectionError):
        sparsity_report(nn.ReLU())
    assert [t.name for t in sparsity_report(model, where="*.bias").tensors] == [
        "first.bias",
        "second.bias",
        "conv.bias",
    ]


def test_collapsed_layers_are_shown_with_what_is_said_of_them():
    model = Tied()
    apply_(model, {"first.weight": torch.zeros(4, 4, dtype=torch.bool)})
    said = {"first.weight": "its output still reaches the loss through a bias"}
    report = sparsity_report(model, verdicts=said)
    console = Console(width=200, file=io.StringIO())
    console.print(report)
    text = console.file.getvalue()
    assert (
        "collapsed its output still reaches the loss" in text
        and "1 collapsed" in text
        and "inf" in text
    )


def test_report_as_json():
    model = Tied()
    apply_(model, {"first.weight": torch.zeros(4, 4, dtype=torch.bool)})
    data = json.loads(sparsity_report(model).to_json())
    first = data["tensors"]["first.weight"]
    assert (
        first["compression"] is None
        and first["collapsed"]
        and first["aliases"] == ["second.weight"]
    )
    assert first["shape"] == [4, 4] and data["collapsed"] == ["first.weight"]
    assert math.isclose(data["total"]["density"] + data["total"]["sparsity"], 1)
    assert data["source"] == "weights"
