"""Masks of a trained ResNet-20 by magnitude and by path costs, with and without rescaled channels
(Gonon et al. 2024, Section 4), on the network and images that `real_networks.py` reads.

    python benchmarks/rescaled_masks.py --weights FOLDER --images FILE_OR_FOLDER
        [--percents 40 60 80] [--epochs 2] [--seeds 0] [--threads 1] [--out rescaled_masks.csv]

Each mask is chosen on the rescaled network, whose function is the same, and put on the trained
weights as they were, as in the paper. A row has the test accuracy at once and after each epoch of
training on. Rows that are in the file are left out, so a stopped run goes on.
"""

import argparse
import copy
import csv
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc
from real_networks import Images, resnet
from secateurs.masks import apply_, select
from secateurs.proof import rescale_random_
from secateurs.scores import score

FIELDS = ("method", "percent", "factors", "seed", "epoch", "accuracy", "kept as without")
FACTORS = {"1": (1,), "1, 128, 4096": (1, 128, 4096)}


def masks_of(model: nn.Module, method: str, percent: int, example: Tensor) -> dict[str, Tensor]:
    """Weights of convolutions and of the linear layer that stay: as many of each layer, as the
    paper's layerwise comparison has it.
    """
    scores = score(model, method, example=example) if method == "path" else score(model, method)
    return select(scores, density=1 - percent / 100, scope="layer")


def train_on(
    model: nn.Module, masks: dict[str, Tensor], images: Images, train_y: Tensor, seed: int
) -> None:
    """One epoch of SGD with momentum at 0.01, crops and flips, zeros held."""
    draws = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    sc.hold(model, masks, optimizer)
    model.train()
    for rows in torch.randperm(len(train_y), generator=draws).split(128):
        x = F.pad(images.train[rows], (4, 4, 4, 4))
        top, left = torch.randint(9, (2,), generator=draws).tolist()
        x = x[:, :, top : top + 32, left : left + 32]
        flipped = torch.rand(len(rows), generator=draws) < 0.5
        x = torch.where(flipped[:, None, None, None], x.flip(3), x)
        optimizer.zero_grad()
        F.cross_entropy(model(x), train_y[rows]).backward()
        optimizer.step()
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--percents", type=int, nargs="+", default=[80, 60, 40])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("rescaled_masks.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    images = Images(asked.images)
    train_y = images.train_labels
    dense, example = resnet(20, asked.weights), images.test[:1]
    done: set[tuple[str, ...]] = set()
    if asked.out.exists():
        with asked.out.open() as file:
            done = {tuple(row[k] for k in FIELDS[:5]) for row in csv.DictReader(file)}
    else:
        asked.out.write_text(",".join(FIELDS) + "\n")
    for seed in asked.seeds:
        for percent in asked.percents:
            for method in ("magnitude", "path"):
                plain = masks_of(dense, method, percent, example)
                for name, factors in FACTORS.items():
                    draws = torch.Generator().manual_seed(seed)
                    scaled = copy.deepcopy(dense)
                    rescale_random_(scaled, example, factors=factors, generator=draws)
                    masks = masks_of(scaled, method, percent, example)
                    total = sum(m.numel() for m in masks.values())
                    same = sum(int((masks[k] == plain[k]).sum()) for k in masks) / total
                    model = copy.deepcopy(dense)
                    apply_(model, masks)
                    for epoch in range(asked.epochs + 1):
                        key = (method, str(percent), name, str(seed), str(epoch))
                        if epoch and (same == 1 and name != "1"):
                            break  # the very masks of the first row
                        if (*key[:4], str(asked.epochs)) in done:
                            break
                        if epoch:
                            train_on(model, masks, images, train_y, 1000 * seed + epoch)
                        row = (*key, f"{images.accuracy(model):.2f}", f"{same:.4f}")
                        if key not in done:
                            with asked.out.open("a") as file:
                                csv.writer(file).writerow(row)
                        print(*row, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
