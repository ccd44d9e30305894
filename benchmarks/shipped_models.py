"""The networks that the shipping benchmarks measure: trained here, the same for every script."""

from pathlib import Path

import torch
import torch.nn.functional as F

from secateurs import masks
from secateurs.base.random import generator
from secateurs.optim import FactorizedSGD
from secateurs_lab import data, models
from secateurs_lab.train import flushed_denormals, load_model_, save_model

FOLDER = Path.home() / ".cache" / "secateurs" / "benchmarks"


def resnet18(*, seed: int = 0, steps: int = 60):
    """ResNet-18 for 32×32 pixels after a short training: weights and norms are not fresh draws."""
    model = models.build("resnet-18", generator=generator(seed, "model"))
    path = FOLDER / f"resnet-18-{steps}-steps-seed-{seed}.safetensors"
    if not path.exists():
        _train_resnet(model, seed=seed, steps=steps)
        save_model(model, path)
    return load_model_(model, path).eval()


def pruned_resnet18(sparsity: float, *, scope: str = "global"):
    """The same, pruned by magnitude: `global` over all weights, or `uniform` in every layer."""
    model = resnet18()
    weights = {n: p.detach() for n, p in model.named_parameters() if p.ndim >= 2}
    scores = {name: weight.abs() for name, weight in weights.items()}
    masks.apply_(model, masks.select(scores, sparsity=sparsity, scope=scope))
    return model


def lenet300(compression: float, *, seed: int = 0, epochs: int = 40):
    """LeNet-300-100 on Fashion-MNIST by the factorized optimizer, at a given compression."""
    model = models.build("lenet-300-100", generator=generator(seed, "model"))
    path = FOLDER / f"lenet-300-100-{compression:g}x-{epochs}-epochs-seed-{seed}.safetensors"
    if not path.exists():
        _train_lenet(model, compression, seed=seed, epochs=epochs)
        save_model(model, path)
    return load_model_(model, path).eval()


def _train_resnet(model, *, seed, steps, batch=64):
    images = data.load("fashion-mnist")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    order = torch.randperm(len(images.train_x), generator=generator(seed, "order"))
    for chosen in order.split(batch)[:steps]:
        x = F.pad(images.train_x[chosen], (2, 2, 2, 2)).expand(-1, 3, -1, -1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), images.train_y[chosen]).backward()
        optimizer.step()


def _train_lenet(model, compression, *, seed, epochs, batch=256):
    images = data.load("fashion-mnist")
    steps = epochs * -(-len(images.train_x) // batch)
    target = {"strength": 3e-4, "target_sparsity": 1 - 1 / compression}
    optimizer = FactorizedSGD(
        model.parameters(),
        lr=0.5,
        depth=3,
        steps=steps,
        generator=generator(seed, "factors"),
        **target,
    )
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw, x = generator(seed, "order"), images.train_x.flatten(1)
    with flushed_denormals():
        for _ in range(epochs):
            for chosen in torch.randperm(len(x), generator=draw).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), images.train_y[chosen]).backward()
                optimizer.step()
                rate.step()
    optimizer.collapse_()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for times in (127, 413, 784):
        network = lenet300(times)
        images = data.load("fashion-mnist")
        with torch.no_grad():
            right = float((network(images.test_x).argmax(1) == images.test_y).float().mean())
        print(
            f"LeNet-300-100 asked {times}×: got {masks.sparsity_report(network)}, "
            f"accuracy {right:.2%}",
            flush=True,
        )
    resnet18()
