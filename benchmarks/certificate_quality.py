"""How tight are the certificates, and what does training for them buy?

Part 1: LeNet-300-100 on Fashion-MNIST, 100 test points, changes int8 / 20 % / 50 %, radii 0.001,
0.004, 0.01 and the whole box: the median over the points of bound / (largest deviation found by
gradient search), per method. Part 2: accuracy against certified share at 50 % and 80 % sparsity,
plain training against the path-norm penalty.

    python benchmarks/certificate_quality.py [--points 100] [--epochs 8] [--margins 200] [--out
    FILE]
"""

import argparse
import copy
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator
from secateurs.errors import DataError
from secateurs.proof import METHODS
from secateurs.proof.certify import search_boxes
from secateurs.proof.domain import ball_domain, box_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import read_problem

RADII = (0.001, 0.004, 0.01)
STRENGTHS = (0.0, 0.03, 0.06, 0.1, 0.3)


def train(data, *, epochs, strength, seed=0):
    """Adam with a cosine schedule on cross-entropy + strength · ln ‖Φ(θ)‖₁."""
    model = lab.models.build(
        "lenet-300-100",
        classes=data.classes,
        size=data.size,
        generator=generator(seed, "init"),
    )
    graph = sc.capture(model.eval(), data.train_x[:1])

    def loss(output, y):
        plain = F.cross_entropy(output, y)
        return (
            plain + strength * sc.path_norm_penalty(model, graph)
            if strength and model.training
            else plain
        )

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lab.train.fit_(
        model,
        data,
        optimizer=optimizer,
        loss=loss,
        length=f"{epochs}ep",
        schedule=lab.train.cosine(),
        generator=generator(seed, "order"),
        evaluate_every=0,
        verbose=False,
    )
    return model.eval()


def int8(model):
    """Round each weight to the nearest of 255 levels of its tensor."""
    return changed(model, lambda w: (w / (w.abs().max() / 127)).round() * (w.abs().max() / 127))


def cut(model, sparsity, scope="global"):
    """Magnitude pruning."""
    other = copy.deepcopy(model)
    sc.apply_(other, sc.select(sc.score(other, "magnitude"), sparsity=sparsity, scope=scope))
    return other


def changed(model, change):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("weight"):
                parameter.copy_(change(parameter))
    return other


def pixel_range(data):
    """The smallest and the largest valid input, and one pixel unit."""
    scale, offset = data.scale[0], data.offset[0]
    return (0 - offset) / scale, (1 - offset) / scale, 1 / scale


def tightness(data, model, points):
    """Rows: change, domain, found, then one ratio per method and for the minimum."""
    low, high, unit = pixel_range(data)
    x = data.test_x[:points]
    for label, other in (
        ("int8", int8(model)),
        ("20 % magnitude", cut(model, 0.2, "layer")),
        ("50 % magnitude", cut(model, 0.5, "layer")),
    ):
        problem = read_problem(model, other, x[:1])
        domains = [
            (f"{r:g}", ball_domain(x, r * unit, clip=(low - 1e-6, high + 1e-6))) for r in RADII
        ]
        domains.append(("whole box", box_domain((low, high), example=x[:1])))
        for name, domain in domains:
            start = time.perf_counter()
            found = search_boxes(
                problem,
                domain,
                restarts=4,
                steps=10,
                generator=generator(0, "search"),
            ).per_output.amax(1)
            proven, _ = run_methods(problem, domain, METHODS.names())
            ratios = {m: (r.per_output.amax(1) / found).median() for m, r in proven.items()}
            best = torch.stack([r.per_output for r in proven.values()]).amin(0).amax(1)
            row = [f"{ratios[m]:.4g}" if m in ratios else "skipped" for m in METHODS.names()]
            seconds = time.perf_counter() - start
            yield [
                label,
                name,
                f"{found.median():.4g}",
                *row,
                f"**{(best / found).median():.4g}**",
                f"{seconds:.0f}",
            ]


def trade_off(data, epochs, points):
    """Rows: strength, sparsity, accuracy dense and pruned, certified share at 0.004 by interval and
    by all methods.
    """
    low, high, unit = pixel_range(data)
    x, y = data.test_x[:points], data.test_y[:points]
    for strength in STRENGTHS:
        model = train(data, epochs=epochs, strength=strength)
        dense = lab.train.evaluate(model, data).accuracy
        norm = sc.log2_path_norm(model, x[:1])
        for sparsity in (0.5, 0.8):
            other = cut(model, sparsity)
            ball = {"radius": 0.004 * unit, "clip": (low - 1e-6, high + 1e-6)}
            shares = []
            for methods in (
                ["path-metric-per-output"],
                ["interval"],
                ["interval", "linear"],
            ):
                cert = sc.certify(model, other, around=x[:1], **ball, methods=methods, restarts=0)
                shares.append(cert.certified_share(x, **ball))
            whole = cert.certified_share(x, y, **ball, whole_ball=True)
            accuracy = lab.train.evaluate(other, data).accuracy
            yield [
                f"{strength:g}",
                f"{norm:.1f}",
                f"{sparsity:.0%}",
                f"{dense:.2%}",
                f"{accuracy:.2%}",
                *[f"{s:.1%}" for s in shares],
                f"{whole:.1%}",
            ]


def table(head, rows, out):
    lines = [
        "| " + " | ".join(head) + " |",
        "| " + " | ".join("---" for _ in head) + " |",
    ]
    for line in lines:
        print(line, file=out, flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", file=out, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--margins", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        data = lab.data.load("fashion-mnist")
    except DataError:
        data = lab.data.load("digits")
    out = args.out.open("w") if args.out else None

    def say(text):
        print(text, file=out, flush=True)

    say(f"# Quality of certificates ({data.name}, LeNet-300-100, {args.epochs} epochs, seed 0)\n")
    say(f"`python benchmarks/certificate_quality.py --points {args.points} --epochs {args.epochs}`")
    say(
        "2 cores AMD EPYC, no GPU, 1 thread. Radii in units of the pixel range [0, 1]; balls cut to"
        " it.\n"
    )
    model = train(data, epochs=args.epochs, strength=0.0)
    say(
        f"Dense accuracy {lab.train.evaluate(model, data).accuracy:.2%}. Median of bound / found"
        " over the points:\n"
    )
    head = ["change", "radius", "found (median)", *METHODS.names(), "auto", "seconds"]
    table(head, tightness(data, model, args.points), out)
    say(
        f"\nCertified share of {args.margins} test points in balls of radius 0.004, global"
        " magnitude pruning"
    )
    say("without retraining, after training with μ·ln ‖Φ(θ)‖₁ added to the loss:\n")
    head = ["μ", "log2 ‖Φ‖₁", "sparsity", "dense accuracy", "pruned accuracy"]
    head += [
        "by path-metric",
        "by interval",
        "by auto",
        "whole ball right and unchanged",
    ]
    table(head, trade_off(data, args.epochs, args.margins), out)


if __name__ == "__main__":
    main()
