"""A ResNet-20 on Fashion-MNIST padded to 32×32, trained so that its certificates say something.

    python benchmarks/certified_training.py train [--steps 4000] [--width 4] [--out FILE]

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
from safetensors.torch import save_file
from torch import nn

import secateurs as sc
from secateurs.paths.certificates.training import (
    certified_gap,
    certified_loss,
    masked,
    rounded,
)
from secateurs.random import generator

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
                setattr(
                    module, conv, fuse(getattr(module, conv), getattr(module, norm))
                )
                setattr(module, norm, nn.Identity())
        if isinstance(module, nn.Sequential) and len(module) == 2:
            conv, norm = module
            if isinstance(norm, nn.BatchNorm2d):
                module[0], module[1] = fuse(conv, norm), nn.Identity()
    return model


def resnet20(width, seed=0):
    """A ResNet-20 without batch norm whose blocks start near their shortcuts."""
    model = sc.models.build(
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
    data = sc.data.load("fashion-mnist")
    x, y = images(data, "train")
    test_x, test_y = images(data, "test")
    model = resnet20(args.width)
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
        radius = args.reach * RADIUS * min(1.0, done / args.ramp) ** 2
        change = masked(0.2) if step % 2 == 0 else rounded(8)
        gap = certified_gap(
            model, graph, x[index], radius=radius, change=change, generator=draws
        )
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train"])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--reach", type=float, default=1.1)
    parser.add_argument("--ramp", type=float, default=0.5)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args)


if __name__ == "__main__":
    main()
