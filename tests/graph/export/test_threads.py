"""Traces in several threads: torch.export patches torch while it runs."""

import threading

import torch
from torch import nn

import secateurs as sc


def test_models_are_traced_in_four_threads():
    models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2 + i)) for i in range(4)]
    errors: list[Exception] = []

    def work(model: nn.Module) -> None:
        for _ in range(4):
            try:
                # Another attribute, so that nothing is remembered.
                model.number = getattr(model, "number", 0) + 1
                sc.capture(model, torch.zeros(1, 4))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
