"""Trainings run where they were sent, and on the CPU afterwards."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from experiments.experiment import chosen_device, on_device
from experiments.factorization.plans import SMOKE
from experiments.factorization.training import build_network, load_images
from experiments.sketching import SMOKE as SKETCH
from experiments.sketching import load_data as images
from experiments.sketching import network_at_start
from secateurs.errors import ArgumentError
from secateurs_lab.data import Dataset


def test_a_device_holds_inside_alone():
    assert chosen_device() == torch.device("cpu")
    with pytest.raises(ZeroDivisionError), on_device("meta"):
        assert chosen_device() == torch.device("meta")
        raise ZeroDivisionError
    assert chosen_device() == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="no device 'gpu'"), on_device("gpu"):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "load", "make"),
    [
        (replace(SMOKE, data="digits"), load_images, build_network),
        (SKETCH, images, lambda settings, dataset: network_at_start(settings, dataset, 0)),
    ],
)
def test_networks_and_images_are_moved_there(monkeypatch, settings, load, make):
    dataset, moved = load(settings), []
    monkeypatch.setattr(Dataset, "to", lambda self, device: moved.append(device))
    # Stands for an accelerator: anything that is not the CPU. Its tensors hold no labels to check.
    with on_device("meta"):
        assert all(p.is_meta for p in make(settings, dataset).parameters())
        with suppress(AttributeError):
            load(settings)
    assert moved == [torch.device("meta")]
