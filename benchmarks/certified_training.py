"""A ResNet-20 on Fashion-MNIST padded to 32×32, trained so that its certificates say something.

    python benchmarks/certified_training.py train [--steps 700] [--width 4] [--out FILE]
    python benchmarks/certified_training.py plain      (the same network, cross-entropy alone)
    python benchmarks/certified_training.py certify [--out FILE] [--points 20] [--seconds 60]

Each step draws a fresh change of the network (half of the time a mask of 20 % of each layer's
smallest weights, drawn with noise; else a random rounding to 8 bits) and minimises
`certified_loss`: cross-entropy, and cross-entropy against all that the change is certified to be
able to do on the ball. The radius grows from 0 to 1.1/255 over the first half. Batch norm is folded
before the first step; the last convolution of each block starts small, so that intervals start
finite. `benchmarks/certificate_quality.py` reads the result.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from certificate_quality import cut, int8
from secateurs.base.random import generator
from secateurs.proof import certified_gap, certified_loss, masked, rounded

RADIUS = 1 / 255
RESULT = Path(__file__).parent / "results" / "certified_resnet20.safetensors"


def images(data, split):
    """Pixels in [0, 1], padded to 32×32, and labels."""
    x, y = data.split(split)
    pixels = x * data.scale[0] + data.offset[0]
    return F.pad(pixels.clamp(0, 1), (2, 2, 2, 2)), y


def folded(model):
    """Every batch norm of a ResNet folded into the convolution before it, in place."""
    fuse = nn.utils.fusion.fuse_conv_bn_eval
    for module in model.modules():
        for conv, norm in (("conv", "bn"), ("conv1", "bn1"), ("conv2", "bn2")):
            if hasattr(module, conv) and hasattr(module, norm):
                setattr(module, conv, fuse(getattr(module, conv), getattr(module, norm)))
                setattr(module, norm, nn.Identity())
        if isinstance(module, nn.Sequential) and len(module) == 2:
            conv, norm = module
            if isinstance(norm, nn.BatchNorm2d):
                module[0], module[1] = fuse(conv, norm), nn.Identity()
    return model


def resnet20(width, seed=0):
    """A ResNet-20 without batch norm whose blocks start near their shortcuts."""
    model = lab.models.build(
        "resnet-20",
        in_channels=1,
        classes=10,
        size=32,
        width=width,
        generator=generator(seed, "init"),
    )
    model = folded(model.eval())
    with torch.no_grad():
        for block in model.blocks:
            block.conv2.weight.mul_(0.1)
    return model


def train(args):
    data = lab.data.load("fashion-mnist")
    x, y = images(data, "train")
    test_x, test_y = images(data, "test")
    model = resnet20(args.width)
    if args.start is not None:
        model.load_state_dict(load_file(args.start))
    graph = sc.capture(model, x[:1])
    draws, order = generator(0, "changes"), generator(0, "order")
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start, seen = time.time(), []
    for step in range(args.steps):
        done = step / args.steps
        rate = min(1.0, step / 100) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * max(rate, 0.01)
        index = torch.randint(len(x), (args.batch,), generator=order)
        radius = args.reach * RADIUS * min(1.0, done / max(args.ramp, 1e-9)) ** 2
        if args.ramp == 0:
            radius = args.reach * RADIUS
        change = masked(0.2) if step % 2 == 0 else rounded(8)
        gap = certified_gap(model, graph, x[index], radius=radius, change=change, generator=draws)
        output = model(x[index])
        loss = certified_loss(output, y[index], gap, share=args.share)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.append((float(loss.detach()), float(gap.detach().mean())))
        if step % args.every == args.every - 1:
            with torch.no_grad():
                right = (model(test_x[:1000]).argmax(1) == test_y[:1000]).float().mean()
            last = seen[-args.every :]
            losses, masks, grids = (
                sum(v) / len(v)
                for v in (
                    [s[0] for s in last],
                    [s[1] for s in last[0::2]],
                    [s[1] for s in last[1::2]],
                )
            )
            print(
                f"step {step + 1}: loss {losses:.4f}, gap {masks:.4g} (20 %),"
                f" {grids:.4g} (int8), radius {radius * 255:.3f}/255, accuracy"
                f" {right:.3f}, {time.process_time():.0f} s of processor,"
                f" {time.time() - start:.0f} s",
                flush=True,
            )
            save_file(model.state_dict(), args.out)


def train_plainly(args):
    """With batch norm and cross-entropy alone; folded at the end."""
    data = lab.data.load("fashion-mnist")
    x, y = images(data, "train")
    test_x, test_y = images(data, "test")
    model = lab.models.build(
        "resnet-20",
        in_channels=1,
        classes=10,
        size=32,
        width=args.width,
        generator=generator(0, "init"),
    ).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    order = generator(0, "order")
    for _ in range(args.steps):
        index = torch.randint(len(x), (args.batch,), generator=order)
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
        schedule.step()
    model = folded(model.eval())
    with torch.no_grad():
        right = (model(test_x[:1000]).argmax(1) == test_y[:1000]).float().mean()
    print(f"accuracy {right:.3f}, {time.process_time():.0f} s of processor")
    save_file(model.state_dict(), args.out)


def certify(args):
    """One row per change and method: bounds beside what was found and beside the margin."""
    data = lab.data.load("fashion-mnist")
    x, y = images(data, "test")
    model = resnet20(args.width)
    model.load_state_dict(load_file(args.out))
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
        logits = model(x[: args.points])
        margin = logits.topk(2, dim=1).values.diff(dim=1).neg().flatten()
    print(f"{args.out.name}: accuracy {right:.2%}, median margin {margin.median():.4g}")
    head = ["change", "method", "accuracy", "found", "bound", "bound / found"]
    head += ["bound / margin", "classes certified", "seconds"]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    for label, change in (("int8", int8), ("20 %", lambda m: cut(m, 0.2, "layer"))):
        other = change(model)
        with torch.no_grad():
            after = (other(x).argmax(1) == y).float().mean()
        for method in args.methods:
            start = time.process_time()
            cert = sc.certify(
                model,
                other,
                around=x[: args.points],
                radius=RADIUS,
                clip=(0, 1),
                methods=list({"interval": None, method: None}),
                restarts=1,
                steps=4,
                seconds=args.seconds,
                symbols=args.symbols,
                generator=generator(0, "search"),
            )
            seconds = time.process_time() - start
            share = cert.certified_share(x[: args.points])
            ratio = (cert.balls / cert.lower_balls).median()
            cells = [
                label,
                method,
                f"{after:.2%}",
                f"{cert.lower_balls.median():.4g}",
                f"{cert.balls.median():.4g}",
                f"{ratio:.4g}",
                f"{(cert.balls / margin).median():.3g}",
                f"{share:.0%}",
                f"{seconds:.0f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
            for remark in (*cert.assumptions[3:], *cert.skipped.values()):
                print(f"  {remark}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "plain", "certify"])
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--reach", type=float, default=1.1)
    parser.add_argument("--ramp", type=float, default=0.35)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--start", type=Path, default=None)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--symbols", type=int, default=None)
    parser.add_argument("--methods", nargs="+", default=["interval", "affine", "linear"])
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"train": train, "plain": train_plainly, "certify": certify}[args.what](args)


if __name__ == "__main__":
    main()
