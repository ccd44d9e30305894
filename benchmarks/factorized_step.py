"""What factorization costs in a training step: dense SGD, explicit factors (parametrize), ours in
torch, ours compiled.

python benchmarks/factorized_step.py [lenet|resnet|late|floor|torch|batches|cuda]… prints tables
(Markdown); threads: OMP_NUM_THREADS

"torch" is the step in torch, where the compiled one is missing or refuses, beside the reference.

"batches" is figures 26 and 27 of Kolb et al. 2025 on a CPU: time of a sample and peak memory of the
paper's two networks, against the batch size.

"bare loop" is the least a factorized step can be: the compiled loop over factors, momenta and
weights and nothing else, no check of the gradients, no groups, no schedule.
"""

import math
import re
import statistics
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized import compiled as fused
from secateurs.optim.factorized.compiled import CompiledStep
from secateurs.optim.factorized.layouts import Stacked
from secateurs.optim.factorized.maths import StepRule
from secateurs.optim.factorized.step import FLUSH_EVERY, AllAtOnce
from secateurs_lab import models

OPTIONS = {"lr": 0.15, "momentum": 0.9}


class Product(nn.Module):
    """The explicit parametrisation: D parameters, multiplied in every forward pass."""

    def __init__(self, depth):
        super().__init__()
        self.depth = depth

    def forward(self, *factors):
        weight = factors[0]
        for factor in factors[1:]:
            weight = weight * factor
        return weight

    def right_inverse(self, weight):
        size = weight.abs().clamp_min(1e-3) ** (1 / self.depth)
        return [size.copysign(weight)] + [size.clone() for _ in range(self.depth - 1)]


def dense(model, _):
    return torch.optim.SGD(model.parameters(), weight_decay=1e-4, **OPTIONS)


def explicit(model, depth):
    owners = [
        (m, n) for m in list(model.modules()) for n, _ in list(m.named_parameters(recurse=False))
    ]
    for module, name in owners:
        parametrize.register_parametrization(module, name, Product(depth))
    return torch.optim.SGD(model.parameters(), weight_decay=1e-4, **OPTIONS)


def ours(fused_path):
    def make(model, depth):
        return FactorizedSGD(
            model.parameters(),
            depth=depth,
            strength=1e-4,
            fused=fused_path,
            **OPTIONS,
        )

    return make


class Bare:
    """The kernel alone, on the tensors of an optimizer that is not asked anything."""

    def __init__(self, model, depth):
        self.parameters = list(model.parameters())
        states = [
            FactorizedSGD(self.parameters, depth=depth, **OPTIONS).state[p] for p in self.parameters
        ]
        self.rule = StepRule(lr=OPTIONS["lr"], momentum=OPTIONS["momentum"], decay=2e-4 / depth)
        self.block = CompiledStep(
            fused.kernel(),
            weights=self.parameters,
            factors=[state["factors"] for state in states],
            momenta=[state["momentum"] for state in states],
            rules=[0] * len(states),
        )

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.block.point([parameter.grad for parameter in self.parameters])
        self.block.step_([self.rule])


WAYS = {
    "parametrize": explicit,
    "ours, pure torch": ours(False),
    "ours, compiled": ours(None),
    "bare loop": Bare,
}


def step_of(name, way, depth, x, y):
    torch.manual_seed(0)
    model = models.build(name).to(x.device)
    optimizer = way(model, depth)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        start = time.perf_counter()
        optimizer.step()
        return (time.perf_counter() - start) * 1e3

    return step


def side_by_side(name, shape, batch, rounds, block):
    """Blocks of steps, interleaved, so that every round meets the same machine; the first two
    rounds are not counted.

    Printed: the lower decile of all steps (other work only ever adds time), the median over rounds
    of the ratio to the dense block of the same round, and the lower decile of the optimizer step
    alone.
    """
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
    steps = {("dense SGD", 0): step_of(name, dense, 0, x, y)}
    steps |= {
        (label, d): step_of(name, way, d, x, y) for label, way in WAYS.items() for d in (2, 3, 4)
    }
    times, alone = {key: [] for key in steps}, {key: [] for key in steps}
    for _ in range(rounds + 2):
        for key, step in steps.items():
            step()  # the caches are another way's
            inner = []
            times[key].append(
                [timed(lambda step=step, inner=inner: inner.append(step())) for _ in range(block)]
            )
            alone[key].append(inner)
    show(f"{name}, batch {batch}", rounds, block, times, alone)


def show(title, rounds, block, times, alone):
    base = ("dense SGD", 0)
    middle = {
        key: [statistics.median(block) for block in blocks[2:]] for key, blocks in times.items()
    }
    low = {key: decile(list(chain(*blocks[2:]))) for key, blocks in times.items()}
    own = {key: decile(list(chain(*blocks[2:]))) for key, blocks in alone.items()}
    print(
        f"\n{title}, {torch.get_num_threads()} threads; {rounds} rounds of blocks of {block}"
        " steps\n"
    )
    print(
        "| ms per step (median ratio to dense; optimizer step alone) | D=2 | D=3 | D=4 |\n| --- |"
        " --- | --- | --- |"
    )
    print(f"| dense SGD | {low[base]:.3f} (1; {own[base]:.3f}) | | |")
    for label in WAYS:
        cells = []
        for key in ((label, d) for d in (2, 3, 4)):
            ratio = statistics.median(a / b for a, b in zip(middle[key], middle[base], strict=True))
            cells.append(f"{low[key]:.3f} ({ratio:.2f}×; {own[key]:.3f})")
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def timed(run):
    """Milliseconds of one call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def decile(values):
    """The lower decile."""
    return sorted(values)[len(values) // 10]


def late():
    """A late state: 99 % of the factors have decayed far, where products underflow."""
    print(
        "\nlate in training: 99 % of the factors of LeNet-300-100 at 1e-12…1e-20 (D=3), ms per"
        " optimizer step\n"
    )
    print("| | fresh | late |\n| --- | --- | --- |")
    for label, flag in (("ours, pure torch", False), ("ours, compiled", None)):
        cells = []
        for decayed in (False, True):
            model = models.build("lenet-300-100", generator=torch.Generator().manual_seed(0))
            optimizer = ours(flag)(model, 3)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) * 1e-3
                if decayed:
                    factors = optimizer.factors(parameter)
                    far = torch.rand(parameter.shape) < 0.99
                    factors.mul_(
                        torch.where(far, 10 ** (-12 - 8 * torch.rand(parameter.shape)), 1.0)
                    )
            optimizer.refresh_()
            cells.append(f"{decile([timed(optimizer.step) for _ in range(120)][20:]):.3f}")
        print(f"| {label} | {' | '.join(cells)} |")


def floor():
    """Traffic: read gradient, factors and momenta, write factors, momenta and weight: 4·(1 + 2D +
    2D + 1) bytes.
    """
    kernel, size = fused.kernel(), 16_000_000
    source = torch.rand(size)
    target = torch.empty_like(source)
    bandwidth = 8 * size / decile([timed(lambda: target.copy_(source)) for _ in range(20)]) * 1e3
    print(
        f"\nthe kernel alone, {size:,} weights, {torch.get_num_threads()} threads; a copy:"
        f" {bandwidth / 1e9:.1f} GB/s\n"
    )
    print(
        "| D | bytes per weight | floor ms | measured ms | measured / floor |\n| --- | --- | --- |"
        " --- | --- |"
    )
    for depth in (2, 3, 4):
        factors, momenta = torch.rand(depth, size), torch.zeros(depth, size)
        rule = StepRule(lr=1e-3, decay=1e-4, momentum=0.9)
        block = CompiledStep(
            kernel, weights=[target], factors=[factors], momenta=[momenta], rules=[0]
        )
        block.point([source])
        times = [timed(lambda block=block, rule=rule: block.step_([rule])) for _ in range(20)]
        traffic = 4 * (2 + 4 * depth)
        least, found = traffic * size / bandwidth * 1e3, decile(times)
        print(f"| {depth} | {traffic} | {least:.1f} | {found:.1f} | {found / least:.2f} |")


TORCH = {
    "lenet-300-100": (torch.float32, torch.bfloat16),
    "resnet-18": (torch.float32,),
}
"""Without a compiler any weights come here; with one those of half precision, among others."""


def in_torch(rounds=30):
    """The optimizer step alone, in interleaved steps."""
    print(
        f"\nthe step in torch, {torch.get_num_threads()} threads; ms per optimizer step, the lower"
        f" decile of {rounds} interleaved steps\n"
    )
    print("| | D | foreach | reference |\n| --- | --- | --- | --- |")
    for name, dtypes in TORCH.items():
        for dtype in dtypes:
            for depth in (2, 3, 4):
                found = " | ".join(
                    f"{decile(times):.3f}" for times in beside(name, dtype, depth, rounds)
                )
                label = f"{name}, {str(dtype).removeprefix('torch.')}"
                print(f"| {label} | {depth} | {found} |", flush=True)


def beside(name, dtype, depth, rounds):
    """Times of all ways on equal networks; the first three steps are not counted."""
    rule = StepRule(lr=OPTIONS["lr"], momentum=OPTIONS["momentum"], decay=2e-4 / depth)
    ways = []
    for way in ("foreach", "reference"):
        model = models.build(name, generator=torch.Generator().manual_seed(0)).to(dtype)
        weights = list(model.parameters())
        optimizer = ours(False)(model, depth)
        states = [optimizer.state[p] for p in weights]
        grads = [torch.randn_like(p) * 1e-3 for p in weights]
        ways.append(torch_way(way, weights, grads, states, rule))
    times = [[timed(lambda way=way, k=k: way(k)) for way in ways] for k in range(rounds + 3)][3:]
    return [[row[i] for row in times] for i in range(len(ways))]


@torch.no_grad()
def torch_way(way, weights, grads, states, rule):
    """A function that takes one step of all parameters in this way."""
    factors, momenta = ([state[key] for state in states] for key in ("factors", "momentum"))
    if way == "reference":
        kept = Stacked(depth=len(factors[0]))
        tensors = list(zip(weights, grads, states, strict=True))

        def step(k):
            for weight, grad, state in tensors:
                kept.step_(weight.detach(), grad, state, rule)

        return step
    mover = AllAtOnce(weights, factors, momenta)

    @torch.no_grad()
    def step(k):
        mover.step_(grads, rule, flush=k % FLUSH_EVERY == 0)

    return step


def on_gpu(rounds=30, block=20):
    """Whole steps on a GPU, in interleaved blocks that end when the GPU is done."""
    ways = {"parametrize": explicit, "ours, foreach": ours(False)}
    print(f"\n{torch.cuda.get_device_name()}; ms per step, median ratio to dense\n")
    print("| | D=2 | D=3 | D=4 |\n| --- | --- | --- | --- |")
    for name, shape, batch in (
        ("lenet-300-100", (1, 28, 28), 256),
        ("resnet-18", (3, 32, 32), 128),
    ):
        x = torch.randn(batch, *shape, device="cuda")
        y = torch.randint(10, (batch,), device="cuda")
        steps = {("dense SGD", 0): step_of(name, dense, 0, x, y)}
        steps |= {
            (label, d): step_of(name, way, d, x, y)
            for label, way in ways.items()
            for d in (2, 3, 4)
        }
        times = {key: [] for key in steps}
        for _ in range(rounds + 2):
            for key, step in steps.items():
                times[key].append(waited(step, block) / block)
        base = times["dense SGD", 0][2:]
        print(f"| {name}, batch {batch}: dense SGD | {statistics.median(base):.3f} | | |")
        for label in ways:
            cells = []
            for depth in (2, 3, 4):
                own = times[label, depth][2:]
                ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
                cells.append(f"{statistics.median(own):.3f} ({ratio:.2f}×)")
            print(f"| {name}: {label} | {' | '.join(cells)} |", flush=True)


def waited(step, count):
    """Milliseconds of so many steps, with what the GPU still does afterwards."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


BATCHES = (1, 4, 16, 64)
"""Batch sizes of figures 26 and 27, as far as a CPU gets through them."""

COSTS = {
    "dense SGD": (dense, (0,)),
    "parametrize": (explicit, (2, 3, 4)),
    "ours, compiled": (ours(None), (2, 3, 4)),
}


def against_batch_size(name, rounds=2):
    """Figures 26 and 27: milliseconds of a sample, ways in turns, and the peak of memory, each in a
    process of its own.
    """
    cases = [(label, depth) for label, (_, depths) in COSTS.items() for depth in depths]
    steps, data = {}, {b: (torch.randn(b, 3, 32, 32), torch.randint(10, (b,))) for b in BATCHES}
    for label, depth in cases:
        torch.manual_seed(0)
        model = models.build(name)
        steps[label, depth] = model, COSTS[label][0](model, depth)
    best = {}
    for _ in range(rounds + 1):
        for batch in BATCHES:
            for case in cases:
                spent = one_step(*steps[case], *data[batch])
                # The first round only warms up, but a minimum does not mind it.
                best[case, batch] = min(spent, best.get((case, batch), math.inf))
    peaks = {case: peak_of(name, *case) for case in cases}
    heads = " | ".join(f"batch {batch}" for batch in BATCHES)
    print(f"\n{name}: milliseconds of processor time per sample (to dense); peak of memory in MB\n")
    print(f"| | {heads} | {heads.replace('batch', 'MB, batch')} |")
    print(f"|{' --- |' * (2 * len(BATCHES) + 1)}")
    for label, depth in cases:
        times = [
            f"{1e3 * best[(label, depth), b] / b:.1f}"
            f" ({best[(label, depth), b] / best[cases[0], b]:.2f}×)"
            for b in BATCHES
        ]
        title = f"{label}, D={depth}" if depth else label
        print(f"| {title} | {' | '.join([*times, *peaks[label, depth]])} |", flush=True)


def one_step(model, optimizer, x, y):
    """Processor seconds of one step; its gradients are freed afterwards, outside the clock."""
    start = time.process_time()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    spent = time.process_time() - start
    optimizer.zero_grad(set_to_none=True)
    return spent


def peak_of(name, label, depth):
    """Megabytes resident at most after two steps of each batch size, above those of an empty
    process.
    """
    code = f"import factorized_step as f; f.print_peaks({name!r}, {label!r}, {depth})"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.split()


def print_peaks(name, label, depth):
    """What `peak_of` reads: largest residence after the steps of each batch size."""
    empty = resident_at_most()
    torch.manual_seed(0)
    model = models.build(name)
    optimizer = COSTS[label][0](model, depth)
    for batch in BATCHES:
        x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        for _ in range(2):
            one_step(model, optimizer, x, y)
        print(round(resident_at_most() - empty))


def resident_at_most():
    """Megabytes. `getrusage` would count what the parent had when it started this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1e3


def main(parts):
    if "batches" in parts:
        for name in ("wrn-16-8", "vgg-19"):
            against_batch_size(name)
    if "cuda" in parts:
        on_gpu()
    if "torch" in parts:
        in_torch()
    if "lenet" in parts:
        side_by_side("lenet-300-100", (1, 28, 28), 256, rounds=20, block=30)
    if "resnet" in parts:
        side_by_side("resnet-18", (3, 32, 32), 32, rounds=3, block=1)
    if "late" in parts:
        late()
    if "floor" in parts:
        floor()


if __name__ == "__main__":
    main(sys.argv[1:] or ["lenet", "resnet", "late", "floor", "torch"])
