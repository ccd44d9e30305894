"""What pruning costs and buys on a GPU, in one command; nothing here has been run on one yet.

    make gpu                              tests/gpu, then every part
    python benchmarks/gpu.py              every part, on a GPU
    python benchmarks/gpu.py hold topk    some parts
    python benchmarks/gpu.py --rehearse   every part, small and on the CPU: to try the script

Prints one table for each part. A time is the median of blocks that end when the device is done, and
ways take turns, so that a ratio compares the same minutes. What a device cannot do is said in the
table.

"experiment" trains ResNet-18 on Fashion-MNIST by three methods, with the lengths and rates that
the paper on factorization prints for ResNet-18 on CIFAR-10 (table 4: 250 epochs of 128, rates of
0.2 and 0.5 at depths 2 and 3). Its rows are kept in gpu.study: begun again, it goes on.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.masks import select
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized.maths import StepRule
from secateurs.optim.factorized.step import AllAtOnce

LR, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The device, and how much is measured."""

    device: torch.device
    small: bool

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, ways: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Median milliseconds of a call, by name; the first two rounds do not count."""
        rounds, block = (3, 1) if self.small else (30, 20)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 2):
            for name, run in ways.items():
                self.wait()
                start = time.perf_counter()
                for _ in range(block):
                    run()
                self.wait()
                found[name].append((time.perf_counter() - start) * 1e3 / block)
        return {name: statistics.median(times[2:]) for name, times in found.items()}


def table(title: str, times: dict[str, float], base: str) -> None:
    """Milliseconds of all ways, and their ratio to one."""
    print(f"\n{title}\n\n| | ms | over {base} |\n| --- | --- | --- |")
    for name, ms in times.items():
        print(f"| {name} | {ms:.3f} | {ms / times[base]:.2f} |", flush=True)


def network(at: Where) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """ResNet-18 and a batch of images of 32×32 pixels."""
    draw = torch.Generator().manual_seed(0)
    name, batch = ("lenet-5", 4) if at.small else ("resnet-18", 128)
    model = lab.models.build(name, generator=draw).to(at.device)
    shape = (1, 28, 28) if at.small else (3, 32, 32)
    x = torch.randn(batch, *shape, generator=draw).to(at.device)
    return model, x, torch.randint(10, (batch,), generator=draw).to(at.device)


def training(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], object]:
    """One step of training as a function."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def factorized(at: Where) -> None:
    """Whole steps beside dense ones, and the update alone, by foreach kernels, compiled, and as a
    CUDA graph (wanted: 1.1 of a dense step)."""
    for depth in (2, 3, 4):
        ways = {}
        for name in ("dense", "factorized"):
            model, x, y = network(at)
            optimizer: torch.optim.Optimizer
            if name == "dense":
                optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
            else:
                optimizer = FactorizedSGD(
                    model.parameters(), depth=depth, strength=1e-4, lr=LR, momentum=MOMENTUM
                )
            ways[name] = training(model, optimizer, x, y)
        table(f"a training step, D = {depth}", at.timed(ways), "dense")
        updates(at, depth)


@torch.no_grad()
def updates(at: Where, depth: int) -> None:
    """The update of all parameters alone: foreach, compiled, captured."""
    model, _, _ = network(at)
    weights = [p.detach() for p in model.parameters()]
    optimizer = FactorizedSGD(model.parameters(), depth=depth, lr=LR, momentum=MOMENTUM)
    states = [optimizer.state[p] for p in model.parameters()]
    # Gradients stay in one place: a captured graph reads them there.
    grads = [torch.randn_like(w) * 1e-3 for w in weights]
    rule = StepRule(lr=1e-3, momentum=MOMENTUM, decay=2e-4 / depth)
    mover = AllAtOnce(weights, [s["factors"] for s in states], [s["momentum"] for s in states])
    dense = torch.optim.SGD(
        [nn.Parameter(w.clone()) for w in weights], lr=1e-3, momentum=MOMENTUM, fused=True
    )
    for parameter, grad in zip(dense.param_groups[0]["params"], grads, strict=True):
        parameter.grad = grad

    def foreach() -> None:
        mover.step_(grads, rule, flush=False)

    ways: dict[str, Callable[[], object]] = {"fused SGD": dense.step, "foreach": foreach}
    if at.device.type == "cuda":
        ways["compiled foreach"] = torch.compile(foreach)
        ways["CUDA graph of foreach"] = captured(foreach)
    else:
        print("compiled, CUDA graph: not on this device")
    table(f"the update alone, D = {depth}", at.timed(ways), "fused SGD")


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """A function whose kernels are recorded once and replayed by one launch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm before the capture, as torch asks
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def hold(at: Where) -> None:
    """Steps with zeros held beside steps without (wanted: 1.02)."""
    ways = {}
    for name in ("dense", "held"):
        model, x, y = network(at)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        if name == "held":
            sc.hold(model, sc.prune_(model, "magnitude", sparsity=0.9).masks, optimizer)
        ways[name] = training(model, optimizer, x, y)
    table("a training step, 90 % zeros", at.timed(ways), "dense")


def topk(at: Where) -> None:
    """The exact selection among 100 million weights, and whether it is that of a full sort."""
    count = 20_000 if at.small else 100_000_000
    draw = torch.Generator(at.device).manual_seed(0)
    scores = {str(i): torch.rand(count // 40, generator=draw, device=at.device) for i in range(40)}
    kept = count // 10
    everything = torch.cat([*scores.values()])

    def ours() -> dict[str, torch.Tensor]:
        return select(scores, density=0.1)

    def theirs() -> torch.Tensor:
        return torch.topk(everything, kept, sorted=False).values

    masks, least = ours(), theirs().min()
    for name, mask in masks.items():
        above = scores[name] > least
        if not bool((mask | ~above).all()) or bool((mask & (scores[name] < least)).any()):
            raise SystemExit(f"{name}: not the largest {kept}")
    if sum(int(mask.count_nonzero()) for mask in masks.values()) != kept:
        raise SystemExit("another number is kept")
    times = at.timed({"torch.topk": theirs, "select": ours})
    table(f"{kept:,} of {count:,} weights, exactly", times, "torch.topk")


def semi_structured(at: Where) -> None:
    """What `accelerate` makes of a block with 2:4 zeros in half precision, beside the dense one."""
    width, batch = (128, 32) if at.small else (4096, 1024)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    sc.prune_(model, "magnitude", pattern="2:4")
    model = model.eval().to(at.device, torch.float16)
    x = torch.randn(batch, width, device=at.device, dtype=torch.float16)
    print(f"\n2:4 in float16, {width} → {4 * width} → {width}, batch {batch}", end=": ")
    made = sc.accelerate(model, x)
    if made is model:
        print("no gain; the log line above says why")
        return
    for layer in made.report.layers:
        print(f"\n  {layer.place}: {', '.join(layer.ways)}", end="")
    with torch.inference_mode():
        gap = float((made(x) - model(x)).abs().max() / model(x).abs().max())
        times = at.timed({"dense": lambda: model(x), "accelerate": lambda: made(x)})
    table(f"outputs differ by {gap:.1e} of the largest", times, "dense")


def certificates(at: Where) -> None:
    """Balls proven per second on the device and on the CPU."""
    count = 8 if at.small else 512
    draw = torch.Generator().manual_seed(0)
    model = lab.models.build("lenet-300-100", generator=draw).eval()
    pruned = lab.models.build("lenet-300-100").eval()
    pruned.load_state_dict(model.state_dict())
    sc.prune_(pruned, "magnitude", sparsity=0.5)
    x = torch.rand(count, 1, 28, 28, generator=draw)
    print("\n| device | balls per second | bound |\n| --- | --- | --- |")
    for device in dict.fromkeys(("cpu", at.device.type)):
        one, two, there = model.to(device), pruned.to(device), x.to(device)
        sc.certify(one, two, around=there[:2], radius=1 / 250)
        at.wait()
        start = time.perf_counter()
        proof = sc.certify(one, two, around=there, radius=1 / 250)
        at.wait()
        speed = count / (time.perf_counter() - start)
        print(f"| {device} | {speed:.1f} | {proof.bound:.4g} |", flush=True)


def experiment(at: Where) -> None:
    """Networks at two compressions: magnitude after training, gradual, and factorized."""
    from secateurs_lab.study import Dwf, Gradual, Prune, Study, Training, run

    length = "1ep" if at.small else "250ep"
    study = Study(
        model="lenet-300-100" if at.small else "resnet-18",
        data="digits" if at.small else "fashion-mnist",
        methods=[
            Prune(),
            Gradual(),
            Dwf(depth=2, strength=(3e-4, 1e-3), train={"lr": 0.2}),
            Dwf(depth=3, strength=(3e-4, 1e-3), train={"lr": 0.5}),
        ],
        compressions=[10, 100],
        train=Training(length=length, batch=128),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        run(study, f"{folder}/gpu.study" if at.small else "gpu.study") as store,
    ):
        rows = store.rows()
    print("\n| method | state | compression | accuracy | device |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        device = row.provenance.get("device", "-")
        accuracy = "-" if row.accuracy is None else f"{row.accuracy:.2%}"
        compression = "-" if row.compression is None else f"{row.compression:.0f}"
        print(f"| {row.label} | {row.state} | {compression} | {accuracy} | {device} |")


PARTS = {
    "factorized": factorized,
    "hold": hold,
    "topk": topk,
    "semi-structured": semi_structured,
    "certificates": certificates,
    "experiment": experiment,
}


def main(words: list[str] | None = None) -> None:
    """The tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    given = parser.parse_args(words)
    if not given.rehearse and not torch.cuda.is_available():
        print("no GPU here: --rehearse tries the script on the CPU")
        return
    at = Where(device=torch.device("cpu" if given.rehearse else "cuda"), small=given.rehearse)
    name = "rehearsal on a CPU" if at.small else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    for part in given.parts:
        PARTS[part](at)


if __name__ == "__main__":
    main()
