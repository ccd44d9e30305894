"""Draws what was measured for the tutorials: `python docs/pictures/measured.py [NAME]`.

Three pictures: how λ is steered and weights die; what the masks of six scores keep; and a
certificate beside what a search finds. Each trains a small network, so this takes a minute.
"""

import math
import sys
from copy import deepcopy

import torch
import torch.nn.functional as F
from draw import FAINT, INK, SECOND, SOFT, STRONG, line, picture, text

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F")


class Panel:
    """A rectangle with two axes, each a range of numbers; y may count decades."""

    def __init__(self, left, top, width, height, x, y):
        self.left, self.top, self.width, self.height = left, top, width, height
        self.x, self.y = x, y

    def at(self, x, y):
        share = [(v - low) / (high - low) for v, (low, high) in ((x, self.x), (y, self.y))]
        across, up = (min(1.0, max(0.0, s)) for s in share)
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def frame(self, xs=(), ys=(), x_label="", y_label=""):
        """Grid lines with their words, and the names of the axes."""
        parts = []
        for value, words in ys:
            left, height = self.at(self.x[0], value)
            parts.append(line((left, height), (left + self.width, height), width=0.6))
            parts.append(text(left - 8, height + 5, words, size=13, anchor="end"))
        bottom = self.top + self.height
        for value, words in xs:
            across, _ = self.at(value, self.y[0])
            parts.append(line((across, self.top), (across, bottom), width=0.6))
            parts.append(text(across, bottom + 19, words, size=13))
        parts.append(text(self.left + self.width / 2, bottom + 40, x_label, size=14))
        parts.append(text(self.left, self.top - 10, y_label, size=14, anchor="start"))
        return parts

    def curve(self, points, *, color, width=2.0, dash="", opacity=1.0):
        ends = "L".join("{:.0f} {:.1f}".format(*self.at(*point)) for point in points)
        style = f'stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"'
        return f'<path d="M{ends}" fill="none" {style} opacity="{opacity}"/>'


def digits():
    """The embedded digits, and a LeNet-300-100 as it is drawn at first."""
    data = lab.data.load("digits")
    return data, lab.models.build("lenet-300-100", size=8, generator=generator(0, "init"))


def trained(epochs=10):
    """A dense network to prune."""
    data, model = digits()
    lab.train.fit_(
        model,
        data,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        length=f"{epochs}ep",
        generator=generator(0, "train"),
        verbose=False,
    )
    return data, model.eval()


def dying_weights(epochs=100, weights=60):
    """A run like that of examples/sparse_from_scratch.py, watched."""
    data, model = digits()
    steps = epochs * -(-len(data.train_x) // 64)
    optimizer = sc.optim.FactorizedSGD(
        model.named_parameters(),
        lr=0.15,
        init="dwf",
        steps=steps,
        target_sparsity=0.98,
        generator=generator(0, "factors"),
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    watch = sc.optim.Dynamics(optimizer, model=model, every=10)
    some = torch.randperm(model.fc1.weight.numel(), generator=generator(0, "some"))[:weights]
    seen, draw = [], generator(0, "batches")
    for _ in range(epochs):
        for x, y in data.batches(64, generator=draw):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            watch.record(loss)
            if optimizer.taken % 10 == 0:
                seen.append(model.fc1.weight.detach().flatten()[some].abs())
    optimizer.collapse_(model)
    alive = model.fc1.weight.detach().flatten()[some] != 0
    times = [sample.step for sample in watch.samples]
    sizes = torch.stack(seen).clamp_min(1e-12).log10()
    return draw_dying(times, sizes, alive, watch.samples, steps)


def draw_dying(times, sizes, alive, samples, steps):
    wide = Panel(76, 40, 620, 220, (0, steps), (-8, 1))
    decades = [(d, f"10{raised(d)}") for d in (-8, -6, -4, -2, 0)]
    ticks = [(steps * share // 4, f"{steps * share // 4}") for share in range(5)]
    parts = wide.frame([], decades, y_label="size of sixty weights of the first layer")
    for number in sorted(range(sizes.shape[1]), key=lambda n: bool(alive[n])):
        track = sizes[:, number].tolist()
        end = next((i + 1 for i, size in enumerate(track) if size < -8), len(track))
        color, width = (STRONG, 1.8) if alive[number] else ("#8b94a3", 0.8)
        points = list(zip(times[:end:2], track[:end:2], strict=True))
        parts.append(wide.curve(points, color=color, width=width, opacity=0.85))
    most = max(sample.strength for sample in samples)
    low = Panel(76, 310, 620, 120, (0, steps), (0, 1))
    shares = [(0, "0"), (0.5, "½"), (1, "1")]
    parts += low.frame(ticks, shares, "steps of training", "")
    zeros = [(sample.step, sample.sparsity) for sample in samples[::2]]
    strength = [(sample.step, sample.strength / most) for sample in samples[::2]]
    parts.append(low.curve(zeros, color=INK))
    parts.append(low.curve(strength, color=SECOND, dash="6 3"))
    parts.append(text(80, 300, "share of zeros", size=14, anchor="start"))
    words = f"λ, as a share of its largest value {most:.3g} (dashed)"
    parts.append(text(200, 300, words, size=14, anchor="start", color=SECOND))
    picture("dying_weights", 720, 480, *parts, title="λ is steered and weights die")


def masks(sparsity=0.95):
    """Which pixels the surviving weights of the first layer read, and what is left per layer."""
    data, model = trained()
    x, y = data.train_x[:256], data.train_y[:256]
    titles = ("magnitude", "snip", "taylor", "wanda", "synflow", "random")
    parts = []
    for number, score in enumerate(titles):
        copy = deepcopy(model)
        recipe = sc.Recipe(score=score, sparsity=sparsity, rounds=20 if score == "synflow" else 1)
        given = {"batch": (x, y), "loss": F.cross_entropy, "example": x[:1]}
        pruned = sc.prune_(copy, recipe, generator=generator(0, score), **given)
        parts += one_mask(pruned.masks, score, 30 + 235 * (number % 3), 40 + 270 * (number // 3))
    picture("masks", 720, 560, *parts, title="what the masks of six scores keep")


def one_mask(masks, title, left, top):
    """An 8×8 picture of the inputs, dark where many weights read, and a bar for each layer."""
    kept = masks["fc1.weight"].sum(0).reshape(8, 8)
    parts = [text(left + 84, top - 10, title, size=16, weight="bold")]
    for row in range(8):
        for column in range(8):
            share = float(kept[row, column]) / max(1.0, float(kept.max()))
            place = f'x="{left + 21 * column}" y="{top + 21 * row}" width="20" height="20"'
            parts.append(f'<rect {place} fill="{COLORS[0]}" fill-opacity="{share:.2f}"/>')
    square = f'x="{left - 1}" y="{top - 1}" width="169" height="169"'
    parts.append(f'<rect {square} fill="none" stroke="{FAINT}"/>')
    for number, (name, mask) in enumerate(masks.items()):
        density, height = float(mask.float().mean()), top + 182 + 18 * number
        back = f'<rect x="{left + 34}" y="{height}" width="90" height="11" fill="{SOFT}"/>'
        width = 90 * density
        bar = f'<rect x="{left + 34}" y="{height}" width="{width:.1f}" height="11" fill="{STRONG}"/>'
        label = text(left + 28, height + 11, name.split(".")[0], size=13, anchor="end")
        words = text(left + 130, height + 11, f"{density:.1%}", size=13, anchor="start")
        parts += [back, bar, label, words]
    return parts


def certificate_search(sparsity=0.5, images=4):
    """Bounds and search on balls of growing radius, for the networks of the tutorial."""
    data, dense = trained()
    sparse = deepcopy(dense)
    sc.prune_(sparse, "magnitude", sparsity=sparsity)
    radii = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
    curves = {"two-stream": [], "interval": [], "linear": [], "found by search": []}
    for radius in radii:
        some = {"around": data.test_x[:images], "radius": radius}
        proof = sc.certify(dense, sparse, methods=["two-stream", "interval", "linear"], **some)
        for name, value in {**proof.bounds, "found by search": proof.lower_bound}.items():
            curves[name].append((math.log10(radius), math.log10(value)))
    panel = Panel(76, 40, 470, 320, (-3, math.log10(0.3)), (0, 4))
    ticks = [(math.log10(radius), f"{radius:g}") for radius in radii]
    decades = [(d, f"10{raised(d)}" if d else "1") for d in range(5)]
    label = "largest change of an output"
    parts = panel.frame(ticks, decades, "radius of the balls (pixels lie in 0…1)", label)
    for number, (name, points) in enumerate(curves.items()):
        found = name == "found by search"
        color = INK if found else COLORS[number]
        parts.append(panel.curve(points, color=color, width=2.6, dash="6 4" if found else ""))
    for number, (name, points) in enumerate(spread(curves)):
        color = INK if name == "found by search" else COLORS[list(curves).index(name)]
        parts.append(text(556, points, name, size=14, color=color, anchor="start"))
    picture("certificate_search", 720, 420, *parts, title="bounds beside what a search found")


def spread(curves, least=18):
    """Names of curves with heights at their right ends, moved apart where they would overlap."""
    panel = Panel(76, 40, 470, 320, (-3, math.log10(0.3)), (0, 4))
    ends = sorted((panel.at(*points[-1])[1] + 5, name) for name, points in curves.items())
    placed, last = [], -math.inf
    for height, name in ends:
        last = max(height, last + least)
        placed.append((name, last))
    return placed


def raised(number):
    """A whole number as a superscript."""
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


PICTURES = {"dying_weights": dying_weights, "masks": masks, "certificate_search": certificate_search}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
