"""What holding the zeros costs: training steps of ResNet-18 with and without, side by side.

The three kinds of step are taken by turns in one process, on one model each, so that drifts of the
machine hit all of them; the figure is the ratio of the medians. On a CPU it is the time of the
process, not of the clock on the wall, so that other programs on the machine do not count (run it on
one thread: waiting threads burn time, too). `multiply` is what one would write first: weights,
gradients and momentum times a float mask, in a post-hook.

    python benchmarks/hold.py --batch 32 --steps 15
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

import secateurs as sc
import secateurs_lab as lab


def build(optimizer: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = lab.models.build("resnet-18", generator=torch.Generator().manual_seed(0))
    if optimizer == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def multiply(
    model: torch.nn.Module,
    masks: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    parameters = [model.get_parameter(name) for name in masks]
    floats = [mask.float() for mask in masks.values()]

    @torch.no_grad()
    def hook(optimizer: torch.optim.Optimizer, *_: object) -> None:
        states = [
            [s for s in optimizer.state[p].values() if s.shape == p.shape] for p in parameters
        ]
        for tensors in (
            parameters,
            [p.grad for p in parameters],
            *zip(*states, strict=True),
        ):
            torch._foreach_mul_(list(tensors), floats)

    optimizer.register_step_post_hook(hook)


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
) -> None:
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def timed(call: Callable[[], object], x: torch.Tensor) -> float:
    clock = time.perf_counter if x.is_cuda else time.process_time
    begin = clock()
    call()
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(options.batch, 3, 32, 32, generator=g).to(options.device)
    y = torch.randint(10, (options.batch,), generator=g).to(options.device)
    runs, held = {}, None
    for kind in ("dense", "hold", "multiply"):
        model, optimizer = build(options.optimizer)
        model.to(options.device)
        if kind != "dense":
            masks = sc.prune_(model, "magnitude", sparsity=options.sparsity).masks
            held = {"hold": sc.hold, "multiply": multiply}[kind](model, masks, optimizer) or held
        runs[kind] = (model, optimizer)
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for number in range(options.steps + 2):
        for kind, (model, optimizer) in runs.items():
            seconds = timed(partial(step, model, optimizer, x, y), x)
            if number >= 2:  # the first steps allocate
                times[kind].append(seconds)
    dense = statistics.median(times["dense"])
    weights = sum(p.numel() for p in runs["dense"][0].parameters())
    print(
        f"ResNet-18, {weights / 1e6:.1f} M parameters, 32x32 images, batch {options.batch},"
        f" {options.optimizer}, "
    )
    print(
        f"sparsity {options.sparsity}, {options.device}, {torch.get_num_threads()} thread(s),"
        f" {options.steps} steps\n"
    )
    print("| step | median | against dense |\n| --- | --- | --- |")
    for kind, seconds in times.items():
        median = statistics.median(seconds)
        print(f"| {kind} | {median * 1e3:.1f} ms | {median / dense:.3f}x |")
    alone = statistics.median(timed(held.enforce, x) for _ in range(options.steps))
    print(f"| what hold does, alone | {alone * 1e3:.1f} ms | {alone / dense:.3f}x |")


if __name__ == "__main__":
    main()
