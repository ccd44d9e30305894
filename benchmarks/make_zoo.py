"""Writes the networks of the zoo from the stores of studies that kept their weights.

    python benchmarks/make_zoo.py FOLDER [--out lab/src/secateurs_lab/zoo/networks]

FOLDER holds the stores NAME.study of the presets below, and keeps what
`weight-factorization-beyond` finds. Of each line the seed with the middle accuracy is taken, so
that a record is what a reader may expect; all seeds stand in it.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median_low

import torch
from safetensors.torch import load_file, save_file

from experiments.factorization import exchange
from experiments.factorization.plans import SEEDS
from secateurs.channels import compact
from secateurs.prune import prune_
from secateurs_lab import data as sets
from secateurs_lab.models import build
from secateurs_lab.study import Store
from secateurs_lab.train import evaluate
from secateurs_lab.zoo import write_record

OUT = Path(__file__).parents[1] / "lab" / "src" / "secateurs_lab" / "zoo" / "networks"
CERTIFIED = Path(__file__).parent / "results" / "certified_resnet20.safetensors"

# Name, preset, compression asked for; of the methods the best one by the median over seeds.
LINES = (
    ("lenet-300-100/fashion-mnist/10x", "sparse-lenet-300-100", 10),
    ("lenet-300-100/fashion-mnist/50x", "sparse-lenet-300-100", 50),
    ("lenet-300-100/fashion-mnist/200x", "sparse-lenet-300-100", 200),
    ("lenet-300-100/fashion-mnist/320x", "zoo", 320),
    ("lenet-300-100/fashion-mnist/500x", "zoo", 500),
    ("lenet-5/fashion-mnist/10x", "sparse-lenet-5", 10),
    ("lenet-5/fashion-mnist/50x", "sparse-lenet-5", 50),
)


# Of these two `weight-factorization-beyond` has the rows.
EXCHANGED = {
    "lenet-300-100/fashion-mnist/1300x": exchange.ZOO[0],
    "lenet-300-100/fashion-mnist/750x": exchange.ZOO[1],
}


def best(rows, asked):
    """The rows of the method with the greatest median, all seeds."""
    groups = {}
    for row in rows:
        if asked == row.asked and row.state == "done" and "held out" not in row.data:
            groups.setdefault(row.label, []).append(row)
    return max(groups.values(), key=lambda group: median_low(r.accuracy for r in group))


def from_study(name, preset, asked, folder, out, data):
    with Store.open(folder / f"{preset}.study") as store:
        group = sorted(best(store.rows(), asked), key=lambda row: row.seed)
        middle = median_low(row.accuracy for row in group)
        row = next(row for row in group if row.accuracy == middle)
        weights = store.tensors(row.weights)
    settings = dict(row.settings)
    net = settings["model"]
    shape = {"in_channels": data.in_channels, "classes": data.classes, "size": data.size}
    model = build(net["name"], **shape, **net["options"])
    model.load_state_dict(weights)
    return write_record(
        model,
        out,
        name=name,
        architecture=net["name"],
        options=net["options"],
        data=data,
        method=row.label,
        command=f"secateurs study run {preset}",
        seeds=[each.seed for each in group],
        accuracies=[each.accuracy for each in group],
        settings={"key": row.key, **settings},
        balls=data.test_x[:2],
    )


def exchanged(name, settings, folder, out, data):
    """Three searches, each some ten minutes unless FOLDER has its network already."""
    found = {}
    for seed in SEEDS:
        kept = folder / f"{name.replace('/', '_')}_{seed}.safetensors"
        model = build("lenet-300-100", in_channels=1, classes=10, size=28)
        if kept.exists():
            model.load_state_dict(load_file(kept))
        else:
            exchange.search(replace(settings, seed=seed))[0].write_into_(model)
            save_file(model.state_dict(), kept)
        found[seed] = evaluate(model.eval(), data).accuracy, model
    accuracies = [accuracy for accuracy, _ in found.values()]
    seed = min(seed for seed in SEEDS if found[seed][0] == median_low(accuracies))
    return write_record(
        found[seed][1],
        out,
        name=name,
        architecture="lenet-300-100",
        data=data,
        method="factorized, then weights exchanged",
        command="python -m experiments weight-factorization-beyond --scale cpu",
        seeds=SEEDS,
        accuracies=accuracies,
        settings=asdict(replace(settings, seed=seed)),
        balls=data.test_x[:2],
    )


def certified(out, data):
    """The ResNet-20 trained for its certificate: its folded biases as batch norms of the
    identity, since the architecture has these.
    """
    held = load_file(CERTIFIED)
    model = build("resnet-20", in_channels=1, classes=10, size=32, width=4).eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, value in held.items():
        if name in state and not name.endswith("conv.bias"):
            state[name] = value
            continue
        # conv1.bias, shortcut.0.bias: the shift of the batch norm behind it.
        norm = name.replace("conv", "bn").replace("shortcut.0", "shortcut.1")
        state[norm] = value
    for name in state:
        if name.endswith("running_var"):
            # The least var with var + eps = 1, so that the scale is 1 to the bit.
            state[name] = torch.full_like(state[name], 1 - 1e-5)
    model.load_state_dict(state)
    # The change that it was trained for: 20 % of each layer.
    prune_(model, "magnitude", sparsity=0.2, scope="uniform")
    shown = (data.test_x[:2] * data.scale[0] + data.offset[0]).clamp(0, 1)
    return write_record(
        model,
        out,
        name="resnet-20/fashion-mnist/certified",
        architecture="resnet-20",
        options={"width": 4},
        data=data,
        pixels=True,
        pad=2,
        method="trained for its certificate, 20 % of each layer cut",
        command="python benchmarks/certified_training.py train",
        balls=torch.nn.functional.pad(shown, (2, 2, 2, 2)),
        methods="interval",
    )


def compacted(folder, out, data):
    """The ResNet-20 whose channels D-Gating has emptied, without them."""
    model = build("resnet-20", in_channels=1, classes=10, size=28, width=8).eval()
    model.load_state_dict(load_file(folder / "resnet-20_0.03.safetensors"))
    return write_record(
        compact(model, data.test_x[:2]),
        out,
        name="resnet-20/fashion-mnist/compacted",
        architecture="resnet-20",
        options={"width": 8},
        data=data,
        method="D-Gating of channels, compacted",
        command="python benchmarks/gated_channels.py --strengths 0.03",
        seeds=(0,),
        accuracies=(evaluate(model, data).accuracy,),
        balls=data.test_x[:2],
        methods="interval",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    data = sets.load("fashion-mnist")
    for name, preset, asked in LINES:
        if args.only is None or name in args.only:
            print(from_study(name, preset, asked, args.folder, args.out, data), flush=True)
    for name, settings in EXCHANGED.items():
        if args.only is None or name in args.only:
            print(exchanged(name, settings, args.folder, args.out, data), flush=True)
    if args.only is None or "certified" in args.only:
        print(certified(args.out, data), flush=True)
    if args.only is None or "compacted" in args.only:
        print(compacted(args.folder, args.out, data), flush=True)


if __name__ == "__main__":
    main()
