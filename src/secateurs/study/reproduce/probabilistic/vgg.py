"""Figure 2 of Qian & Klabjan (2021): the weights of a VGG-16, layer by layer.

Print's network is torchvision's, trained on ImageNet. Where its weights lie in the data folder as
`vgg16.safetensors`, `full` reads them; `cpu` trains the VGG-16 of 32×32 images a little.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs import data, models, random
from secateurs.data import Dataset
from secateurs.data.files import home
from secateurs.diagnosis import LayerDiagnosis, diagnose
from secateurs.diagnosis.diagnose import CLOSE
from secateurs.errors import DataError
from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Beside,
    Experiment,
    Job,
    Row,
    Scale,
)
from secateurs.study.reproduce.place import place
from secateurs.train import cosine, fit_

WEIGHTS = "vgg16.safetensors"
SIDE = 32
"""The least that five halvings leave a pixel of."""


def jobs(scale: Scale) -> list[Job]:
    """One network, and at "cpu" the same before its training."""
    if scale == "full":
        return [Job(name=f"{WEIGHTS}, as published", work=_published)]
    images, epochs = (64, 1) if scale == "smoke" else (4_096, 5)
    return [
        Job(
            name=f"vgg-16, {images} images of fashion-mnist, {length} epochs, seed 0",
            work=partial(_trained, images, length),
        )
        for length in (0, epochs)
    ]


def _published() -> Iterator[dict[str, object]]:
    from safetensors.torch import load_file

    path = home() / WEIGHTS
    if not path.exists():
        raise DataError(
            f"figure 2 shows torchvision's VGG-16, and {path} is not there. Save its weights:"
            " safetensors.torch.save_file(vgg16(weights='IMAGENET1K_V1').state_dict(), path)."
        )
    return rows_of("vgg-16, ImageNet", load_file(path))


def _trained(images: int, epochs: int) -> Iterator[dict[str, object]]:
    dataset = padded(data.load("fashion-mnist").first(images, images)).to(place())
    model = models.build(
        "vgg-16",
        in_channels=dataset.in_channels,
        classes=dataset.classes,
        size=SIDE,
        generator=random.generator(0, "vgg/start"),
    ).to(place())
    if epochs:
        fit_(
            model,
            dataset,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            length=f"{epochs}ep",
            batch=64,
            schedule=cosine(),
            generator=random.generator(0, "vgg/order"),
            verbose=False,
        )
    yield from rows_of(f"vgg-16, {epochs} epochs", model)


def padded(dataset: Dataset) -> Dataset:
    """Images of 32×32 pixels: smaller ones get a black border."""
    left = (SIDE - dataset.size) // 2
    right = SIDE - dataset.size - left
    train_x, test_x = (
        F.pad(x, (left, right, left, right))
        for x in (dataset.train_x, dataset.test_x)
    )
    return replace(dataset, train_x=train_x, test_x=test_x)


def rows_of(
    network: str, weights: "nn.Module | Mapping[str, Tensor]"
) -> Iterator[dict[str, object]]:
    """A row a layer: moments, the distance to the normal law, and the histogram."""
    found = (
        x for x in diagnose(weights).layers if x.kind in ("linear", "convolution")
    )
    for number, layer in enumerate(found, start=1):
        yield {"network": network, "layer": number, **_row(layer)}


def _row(layer: LayerDiagnosis) -> dict[str, object]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "mean": layer.mean,
        "variance": layer.variance,
        "kurtosis": layer.kurtosis,
        "ks_normal": layer.ks_normal,
        "low": layer.edges[0],
        "high": layer.edges[-1],
        # In one cell, since all rows of a file have the same columns.
        "counts": " ".join(map(str, layer.counts)),
    }


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Print says "approximately Gaussian" of the internal layers: the distance says how far."""
    return [
        Beside(
            what=f"{row['network']}, layer {row['layer']} ({row['kind']}):"
            " distance to the normal law",
            ours=(float(row["ks_normal"]),),
            note="close" if float(row["ks_normal"]) <= CLOSE else "",
        )
        for row in rows
    ]


EXPERIMENTS.register("probabilistic-vgg")(
    Experiment(
        name="probabilistic-vgg",
        paper="Qian & Klabjan 2021",
        what="figure 2: histograms of the weights of a VGG-16",
        jobs=jobs,
        beside=beside,
        settings={
            "smoke": "64 images of Fashion-MNIST, before and after one epoch",
            "cpu": "4,096 images of Fashion-MNIST, before and after five epochs",
            "full": f"torchvision's weights, in the data folder as {WEIGHTS}",
        },
    )
)
