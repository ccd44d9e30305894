"""CIFAR-10 on one card: a ResNet-20 made sparse by factorization, by what it is compared with, and
at the start by the largest scores and by drawn ones, within a few minutes.

    python -m experiments.cifar_card --images cifar10.npz --seconds 400 --out FOLDER

Methods and settings are those of a study (`experiments.cifar`). What differs is how they run: a
network this small waits for the host, so forward and backward pass are a captured graph with the
batch drawn inside it, each process trains some networks in turn, and several processes share the
card. Runs stand in order of their worth. One that would not end in time is not begun, and a row is
written as soon as its run is done: rows.jsonl as they come, and at the end rows.csv.

`--rehearse` does all of it small, on the processor.
"""

# mypy: disable-error-code="no-untyped-call"
# torch has no types for streams, `split` and `backward`.

import argparse
import io
import json
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.cifar import FIFTEEN, RATES
from secateurs.base.random import generator
from secateurs.masks import apply_
from secateurs.optim import FactorizedSGD
from secateurs.prune import cut
from secateurs_lab.data import Dataset, from_tensors
from secateurs_lab.models import build
from secateurs_lab.study.config import Chains, Run, waiting_row
from secateurs_lab.study.database import Row
from secateurs_lab.study.export import run_lines, write_lines
from secateurs_lab.study.fitting import TRAINERS, Trainer, TrainingJob
from secateurs_lab.study.measure import machine, remaining, versions
from secateurs_lab.study.methods import Dense, Dwf, Gradual, Method, Prune, RigLMethod
from secateurs_lab.study.settings import Data, Net
from secateurs_lab.train import cosine
from secateurs_lab.train.schedules import Clock

# What is run, in order of its worth.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A run that is asked for.

    Attributes:
        method: Its λ, if it has one, is chosen when the run begins.
        compression: Asked of the method; of factorization, what its λ aims at.
        on_noise: Whether scores are of normal images with random labels.
    """

    method: Method
    compression: float | None = None
    seed: int = 0
    on_noise: bool = False


def wishes() -> list[Wish]:
    """The table: first one compression by all methods, then the others, then second seeds."""
    dwf = {depth: Dwf(depth=depth, train={"lr": rate}) for depth, rate in RATES.items()}

    def factorized(*compressions: float) -> list[Wish]:
        return [Wish(method=dwf[d], compression=c) for c in compressions for d in dwf]

    def at_start(compression: float, how: Literal["topk", "sample"]) -> list[Wish]:
        synflow = Prune(score="synflow", rounds=100, how=how, after="init")
        snip = Prune(score="snip", examples=2560, how=how, after="init")
        return [Wish(method=method, compression=compression) for method in (synflow, snip)]

    def on_noise(compression: float, how: Literal["topk", "sample"]) -> Wish:
        plain = Prune(score="snip", examples=2560, how=how, after="init")
        snip = replace(plain, label=f"{plain.title}, on noise")
        return Wish(method=snip, compression=compression, on_noise=True)

    gradual, rigl = Gradual(), RigLMethod()
    first = [
        Wish(method=Dense()),
        *factorized(20),
        Wish(method=gradual, compression=20),
        Wish(method=rigl, compression=20),
        Wish(method=gradual, compression=50),
        *factorized(50, 10),
        Wish(method=rigl, compression=50),
        Wish(method=gradual, compression=10),
        *at_start(50, "topk"),
        *at_start(10, "topk"),
        Wish(method=rigl, compression=10),
        *factorized(100),
        Wish(method=gradual, compression=100),
        *at_start(50, "sample"),
        *at_start(10, "sample"),
        *factorized(200),
        *(on_noise(c, how) for c in (50.0, 10.0) for how in ("topk", "sample")),
    ]
    return [*first, *(replace(wish, seed=1) for wish in first)]


GUESS = {2: (4e-4, 20.0), 3: (1.3e-4, 25.0)}
"""λ, and the compression that it is thought to reach, by depth: used until a run has ended."""

SLOPE = 3.0
"""How the logarithm of the compression is thought to grow with that of λ."""


def strength_for(aim: float, known: Iterable[tuple[float, float]], depth: int) -> float:
    """λ for a compression, read off the (λ, compression) of other runs on logarithmic scales.

    >>> found = [(1e-4, 10.0), (4e-4, 40.0)]
    >>> [round(strength_for(aim, found, 2), 6) for aim in (10, 20, 40)]
    [0.0001, 0.0002, 0.0004]
    """
    # Beyond these a network is dense, or all but gone, and the figure itself says nothing.
    points = [(math.log(x), math.log(min(max(y, 1.01), 5000))) for x, y in known]
    if not points:
        points = [(math.log(GUESS[depth][0]), math.log(GUESS[depth][1]))]
    at = math.log(aim)
    below = [point for point in points if point[1] <= at]
    above = [point for point in points if point[1] >= at]
    if below and above:
        (x, y), (other, its) = max(below, key=lambda p: p[1]), min(above, key=lambda p: p[1])
        return math.exp(x if its == y else x + (other - x) * (at - y) / (its - y))
    x, y = max(below, key=lambda p: p[1]) if below else min(above, key=lambda p: p[1])
    return math.exp(x + (at - y) / SLOPE)


# Images, as one file and in the memory of the device.

Pixels: TypeAlias = np.ndarray[Any, Any]

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MARGIN = 4
"""Pixels by which a training image is shifted at most."""


def read_images(path: str) -> dict[str, Pixels]:
    """CIFAR-10 as bytes: arrays train_x (n, 32, 32, 3), train_y, test_x, test_y; or JPEG files that
    share their header: header, train_scans (all files without it, in a row), train_sizes.
    """
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    made = {}
    for name in ("train", "test"):
        x = found.get(f"{name}_x")
        if x is None:
            sizes = found[f"{name}_sizes"].astype(np.int64)
            scans, header = found[f"{name}_scans"].tobytes(), found["header"].tobytes()
            ends = zip(sizes.cumsum().tolist(), sizes.tolist(), strict=True)
            files = [header + scans[end - size : end] for end, size in ends]
            # Forked, so that torch is not imported again: nothing here has touched a device.
            with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
                x = np.stack(pool.map(_decode, files, chunksize=500))
        made[f"{name}_x"] = x
        made[f"{name}_y"] = found[f"{name}_y"].astype(np.int64)
    return made


def _decode(file: bytes) -> Pixels:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Normalised images, channels last; those of the training with a margin of zeros."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def of(cls, bytes_of: dict[str, Pixels], device: str) -> "Images":
        """From bytes, as the convolutions read them under autocast."""
        shift, scale = (torch.tensor(each, device=device) for each in (MEAN, DEVIATION))

        def normalised(name: str) -> Tensor:
            x = torch.from_numpy(bytes_of[name]).to(device)
            kept = torch.bfloat16 if device == "cuda" else torch.float32
            # In pieces, since single precision takes four times what is kept.
            return torch.cat(
                [((p.float() / 255 - shift) / scale).to(kept) for p in x.split(10_000)]
            )

        return cls(
            train_x=F.pad(normalised("train_x"), (0, 0, MARGIN, MARGIN, MARGIN, MARGIN)),
            train_y=torch.from_numpy(bytes_of["train_y"]).to(device),
            test_x=normalised("test_x").permute(0, 3, 1, 2),
            test_y=torch.from_numpy(bytes_of["test_y"]).to(device),
        )

    def some(self, count: int, *, noise: bool, seed: int) -> Dataset:
        """So many training images of all classes, or normal ones with random labels, as a set."""
        draw = generator(seed, "scored")
        chosen = torch.randperm(len(self.train_y), generator=draw)[:count].to(self.train_y.device)
        inner = slice(MARGIN, -MARGIN)
        x = self.train_x[chosen][:, inner, inner].float().permute(0, 3, 1, 2).contiguous()
        y = self.train_y[chosen]
        if noise:
            x = torch.randn(x.shape, generator=draw).to(x.device)
            y = torch.randint(10, y.shape, generator=draw).to(y.device)
        return from_tensors(
            "cifar-10-jpeg", train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], classes=10
        )


def shifted(x: Tensor, chosen: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """These images, each without a margin of its own choice, and mirrored or not."""
    side = x.shape[1] - 2 * MARGIN
    across = torch.arange(side, device=x.device)
    rows = down[:, None] + across
    columns = right[:, None] + torch.where(mirrored[:, None] > 0, side - 1 - across, across)
    # One kernel that reads, with an index for every pixel.
    taken = x[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
    return taken.permute(0, 3, 1, 2)


# One network in training.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is, and where it runs."""

    model: str = "resnet-20"
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 60
    batch: int = 128
    together: int = 2
    device: str = "cuda"
    graphs: bool = True
    small: bool = False

    def settings(self, wish: Wish) -> Run:
        """The run as a study has it."""
        train = replace(
            FIFTEEN.train,
            length=f"{self.epochs}ep",
            batch=self.batch,
            drop_last=True,
            evaluate_every=0,
        )
        chains = Chains(train=train, tune=None, certify=None)
        steered = isinstance(wish.method, Dwf)
        return chains.run(
            _shortened(wish.method) if self.small else wish.method,
            None if steered else wish.compression,
            data=Data(name="cifar-10-jpeg"),
            model=Net(name=self.model, options=self.options),
            seed=wish.seed,
        )


def _shortened(method: Method) -> Method:
    """The method with everything that takes time, or many steps, made small."""
    if isinstance(method, Prune) and not isinstance(method, Gradual):
        return replace(method, rounds=min(method.rounds, 3), examples=min(method.examples, 64))
    return replace(method, every="2it") if isinstance(method, RigLMethod) else method


class Fit:
    """One network in training: `turn` moves its weights once and begins the next passes."""

    def __init__(self, wish: Wish, images: Images, scale: Scale) -> None:
        start = time.monotonic()
        self.wish, self.images, self.scale = wish, images, scale
        self.run = scale.settings(wish)
        self.done, self.per_epoch = 0, len(images.train_y) // scale.batch
        self.total = scale.epochs * self.per_epoch
        self.notes: list[str] = []
        self.timings: dict[str, float] = {}
        self.stream = torch.cuda.Stream() if scale.graphs else None
        with self.on_stream():
            self._begin()
            self.timings["begin"] = time.monotonic() - start
            self._capture()
            self._draw()
            self._passes()
        self.timings["capture"] = time.monotonic() - start - self.timings["begin"]
        self.started = time.monotonic()

    def on_stream(self) -> AbstractContextManager[object]:
        """Everything of a run goes through a stream of its own."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _begin(self) -> None:
        """The network, cut where that comes first, and its trainer."""
        run, scale = self.run, self.scale
        source = generator(run.seed, "init")
        model = build(scale.model, classes=10, generator=source, **scale.options)
        self.model = model.to(scale.device)
        # Faster on a card. On processors without AVX-512 the backward pass of a 1 × 1 convolution
        # with stride 2 and few channels crashes in this layout (torch 2.13.0, torch alone).
        if scale.device != "cpu":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        examples = getattr(run.method, "examples", 1)
        data = self.images.some(examples, noise=self.wish.on_noise, seed=run.seed)
        masks = None
        if isinstance(run.method, Prune) and not isinstance(run.method, Gradual):
            pruned = cut(
                self.model,
                run.method.recipe(run.compression),
                example=data.train_x[:1],
                batch=(data.train_x, data.train_y),
                loss=F.cross_entropy,
                generator=generator(run.seed, "draw"),
            )
            masks = dict(pruned.masks)
            self.notes += pruned.notes
            apply_(self.model, masks)
        job = TrainingJob(
            run=run,
            model=self.model,
            data=data,
            masks=masks,
            per_epoch=self.per_epoch,
            total=self.total,
        )
        self.trainer: Trainer = TRAINERS[run.method.kind](job)
        if scale.device == "cuda" and type(self.trainer.optimizer) is torch.optim.SGD:
            # One launch a step in place of five.
            for group in self.trainer.optimizer.param_groups:
                group["fused"] = True
        self.schedule = cosine(warmup=run.train.warmup)
        self.rates = [float(group["lr"]) for group in self.trainer.optimizer.param_groups]
        # Multiplications are counted in evaluation.
        self.model.train()
        for module in self.model.modules():
            # Twenty kernels a step that count what nobody reads.
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None
        self.parameters = list(self.model.parameters())
        self.cursor = torch.zeros(1, dtype=torch.long, device=scale.device)
        shape = (4, self.per_epoch, scale.batch)
        self.drawn = torch.zeros(shape, dtype=torch.long, device=scale.device)
        self.source = torch.Generator(scale.device).manual_seed(
            generator(run.seed, "batches").initial_seed() % 2**31
        )

    def _draw(self) -> None:
        """The images of the next epoch in their order, their shifts, and which are mirrored."""
        _, steps, batch = self.drawn.shape
        draws: dict[str, Any] = {"generator": self.source, "device": self.drawn.device}
        order = torch.randperm(len(self.images.train_y), **draws)[: steps * batch]
        shifts = torch.randint(2 * MARGIN + 1, (2, steps, batch), **draws)
        mirrored = torch.randint(2, (1, steps, batch), **draws)
        self.drawn.copy_(torch.cat([order.view(1, steps, batch), shifts, mirrored]))
        self.cursor.zero_()

    def _forward_and_backward(self) -> None:
        """One batch, drawn before; every number that it needs lies on the device."""
        chosen, down, right, mirrored = self.drawn.index_select(1, self.cursor).squeeze(1)
        x = shifted(self.images.train_x, chosen, down, right, mirrored)
        # The cache of weights in bfloat16 would outlive the capture.
        with torch.autocast(self.scale.device, torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(self.model(x), self.images.train_y[chosen])
        loss.backward()
        self.loss = loss.detach()
        self.cursor += 1

    def _capture(self) -> None:
        """Make `_passes`: a graph, or where none can be captured the passes themselves."""
        self._passes: Callable[[], object] = self._plain_passes
        self.gradients: list[Tensor | None] = []
        if self.stream is None:
            return
        # What the warming up moves: neither weights nor the optimizer's state.
        before = [buffer.clone() for buffer in self.model.buffers()]
        for _ in range(3):
            self._plain_passes()
        torch.cuda.synchronize()
        self._forget_gradients()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._forward_and_backward()
        except RuntimeError as error:
            self.notes.append(f"no graph: {str(error).splitlines()[0][:200]}")
            torch.cuda.synchronize()
        else:
            # Gradients lie in the graph's memory, and every replay writes them anew.
            self.gradients = [parameter.grad for parameter in self.parameters]
            self._passes = graph.replay
        for buffer, was in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(was)

    def _plain_passes(self) -> None:
        self._forget_gradients()
        self._forward_and_backward()

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def turn(self) -> None:
        """Move the weights by the gradients of the passes before, and begin the next ones.

        The device then computes those while the host looks after another network.
        """
        with self.on_stream():
            factor = self.schedule(Clock(self.done, self.per_epoch, self.total))
            optimizer = self.trainer.optimizer
            for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
                group["lr"] = factor * rate
            optimizer.step()
            for callback in self.trainer.callbacks:
                # Those of our methods count steps, and look at nothing of the moment.
                callback(None)  # type: ignore[arg-type]
            self.done += 1
            if self.gradients and self.parameters[0].grad is None:
                # RigL takes them away where it changes masks instead of weights.
                for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                    parameter.grad = gradient
            if self.done == self.total:
                return
            if self.done % self.per_epoch == 0:
                self._draw()
            self._passes()

    def end(self) -> Row:
        """Make zeros exact, test the network, and say what it is."""
        with self.on_stream():
            trained = time.monotonic() - self.started
            before = self.accuracy()
            self.trainer.finish_()
            optimizer = self.trainer.optimizer
            accuracy = self.accuracy() if isinstance(optimizer, FactorizedSGD) else before
            cost = self.trainer.cost
            found = remaining(self.model)
            loss = float(self.loss)
            gap: dict[str, float] = {}
            if isinstance(optimizer, FactorizedSGD):
                # Where the run was too short for dead weights to fall below the paper's threshold.
                left = optimizer.collapse_(self.model, threshold="gap")
                gap = {
                    "gap.accuracy": self.accuracy(),
                    "gap.compression_all": left.total / max(1, left.kept),
                }
        whole = self.done == self.total
        share = 1.0 if cost is None else cost.share
        metrics = {
            "accuracy": accuracy,
            "accuracy_uncollapsed": before,
            "compression_all": found["total_all"] / max(1, found["kept_all"]),
            "cost.share": share,
            "cost.steps": share * self.done,
            "epochs": self.done / self.per_epoch,
            **gap,
            "last_loss": loss if math.isfinite(loss) else -1.0,
            **found,
        }
        if self.scale.device == "cuda":
            metrics["process_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
        self.timings |= {"train": trained, "measured": time.monotonic() - self.started - trained}
        return replace(
            row_of(self.wish, self.run),
            state="done" if whole else "cancelled",
            reason="" if whole else f"the time was over after {metrics['epochs']:.1f} epochs",
            accuracy=accuracy,
            compression=found["compression"],
            sparsity=found["sparsity"],
            kept=int(found["kept"]),
            total=int(found["total"]),
            seconds=sum(self.timings.values()),
            progress=self.done / self.total,
            metrics={**metrics, "aim": self.wish.compression or 1.0},
            timings=self.timings,
            provenance=self._provenance(),
        )

    def _provenance(self) -> dict[str, Any]:
        on_card = self.scale.device == "cuda" and self.stream is not None
        return {
            "device": torch.cuda.get_device_name() if on_card else self.scale.device,
            "machine": machine(),
            "notes": self.notes,
            "precision": "bf16",
            "seed": self.run.seed,
            "versions": versions(),
        }

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of test images that are classified correctly."""
        self.model.eval()
        right = torch.zeros((), dtype=torch.long, device=self.scale.device)
        batches = (self.images.test_x.split(2000), self.images.test_y.split(2000))
        for x, y in zip(*batches, strict=True):
            with torch.autocast(self.scale.device, torch.bfloat16, cache_enabled=False):
                right += (self.model(x).argmax(1) == y).sum()
        self.model.train()
        return int(right) / len(self.images.test_y)


def row_of(wish: Wish, run: Run) -> Row:
    """What is known of a run beforehand, and where it differs from that of a study."""
    row = waiting_row(run)
    settings = {**row.settings, "train": {**row.settings["train"], "augment": "shifts and flips"}}
    settings["method"] = {**settings["method"], "scored_on": "noise" if wish.on_noise else "data"}
    return replace(row, settings=settings, key=row.key + "-noise" * wish.on_noise)


# A process that trains some networks in turn, and the one that hands out the runs.


GRACE = 10.0
"""Seconds before the end at which runs that have not ended are tested as they are."""


WINDOW = 1000
"""Turns over which their time is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A process has room for a run; a turn of all its networks takes so many seconds."""

    pace: float | None
    steps: int


def serve(pipe: Connection, scale: Scale, until: float) -> None:
    """Train what comes through the pipe, and send the rows back, until the time is over."""
    torch.set_num_threads(1)
    # Shapes never change, and the algorithms are looked for before anything is captured.
    torch.backends.cudnn.benchmark = True
    images = Images.of(_mapped(pipe.recv()), scale.device)
    if scale.graphs:
        # Runs read them on streams of their own.
        torch.cuda.synchronize()
    running: list[Fit] = []
    pace: float | None = None
    steps = scale.epochs * (len(images.train_y) // scale.batch)
    more = True
    while running or more:
        while more and len(running) < scale.together:
            pipe.send(Ready(pace=pace, steps=steps))
            wish = pipe.recv()
            more = wish is not None
            if more:
                running += _tried(lambda wish=wish: Fit(wish, images, scale), wish, pipe, scale)  # type: ignore[misc]
        start, turns = time.monotonic(), 0
        ended: list[Fit] = []
        while running and not ended:
            for fit in running:
                if not _tried(fit.turn, fit.wish, pipe, scale):
                    ended.append(fit)
                    fit.notes.append("failed")
            turns += 1
            ended += [fit for fit in running if fit.done == fit.total and fit not in ended]
            if time.monotonic() > until:
                ended, more = [*running], False
            if turns % WINDOW == 0:
                now = time.monotonic()
                # In the first window kernels are compiled.
                if turns > WINDOW and len(running) == scale.together:
                    first, pace = pace is None, (now - start) / WINDOW
                    text = f"{pace * 1e3:.2f} ms a turn of {scale.together} networks"
                    if first:
                        print(f"-- {text}", flush=True)
                    if turns == 3 * WINDOW and pace * (steps - turns) > 1.5 * (until - now):
                        # Better to know now than to have many networks that are half trained.
                        print(f"-- {text}: none would end in time", flush=True)
                        ended, more = [*running], False
                start = now
        for fit in ended:
            running.remove(fit)
            if "failed" not in fit.notes:
                rows = _tried(fit.end, fit.wish, pipe, scale)
                if rows:
                    pipe.send((fit.wish, rows[0]))


def _tried(do: Callable[[], Any], wish: Wish, pipe: Connection, scale: Scale) -> list[Any]:
    """What this returns, in a list; an empty one, and a row that says why, where it fails."""
    try:
        return [do()]
    except Exception as error:
        places = traceback.extract_tb(error.__traceback__)
        where = f"{Path(places[-1].filename).name}:{places[-1].lineno}"
        reason = f"{type(error).__name__}: {error}"[:300] + f" at {where}"
        traceback.print_exc()
        row = row_of(wish, scale.settings(wish))
        pipe.send((wish, replace(row, state="failed", reason=reason)))
        if scale.graphs:
            # After an error of the device nothing works in this process: it ends by this.
            torch.cuda.synchronize()
        return []


def _mapped(folder: str) -> dict[str, Pixels]:
    return {path.stem: np.load(path) for path in Path(folder).glob("*.npy")}


@dataclass(slots=True, kw_only=True)
class Worker:
    """A process, and the runs that it has."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    has: list[Wish] = field(default_factory=list)


class Table:
    """Hands out runs in order, and keeps the rows."""

    def __init__(self, asked: Sequence[Wish], scale: Scale, folder: Path, until: float) -> None:
        self.left, self.scale, self.folder, self.until = [*asked], scale, folder, until
        self.rows: list[Row] = []
        self.told = False
        self.begun: set[int] = set()
        """Depths of which a run has begun."""

    def next(self, ready: Ready) -> Wish | None:
        """The next run, with its λ, if it can end in time."""
        spare = self.until - GRACE - time.monotonic()
        if ready.pace is not None:
            takes = 1.05 * ready.pace * ready.steps + 5
            if not self.told:
                self.told = True
                text = f"a run takes {takes:.0f} s beside its neighbours; {spare:.0f} s are left"
                print(f"-- {text}, {len(self.left)} runs", flush=True)
            if takes > spare:
                return None
        if not self.left or spare < 0:
            return None
        wish = next((wish for wish in self.left if not self._waits(wish)), self.left[0])
        self.left.remove(wish)
        if not isinstance(wish.method, Dwf) or wish.compression is None:
            return wish
        self.begun.add(wish.method.depth)
        strength = strength_for(wish.compression, self._known(wish.method), wish.method.depth)
        return replace(wish, method=replace(wish.method, strength=float(f"{strength:.3g}")))

    def _waits(self, wish: Wish) -> bool:
        """Whether its λ had better be chosen later, when the first run of this depth has ended."""
        method = wish.method
        if not isinstance(method, Dwf) or method.depth not in self.begun:
            return False
        return not any(self._known(method))

    def _known(self, method: Dwf) -> Iterator[tuple[float, float]]:
        """λ and compression of the runs of this depth that are done."""
        for row in self.rows:
            same = row.settings["method"].get("depth") == method.depth
            if same and row.state == "done" and row.strength and row.compression:
                yield row.strength, row.compression

    def keep(self, row: Row) -> None:
        """Write a row, whatever happens next."""
        self.rows.append(row)
        (line,) = run_lines([row])
        with (self.folder / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        shown = {"accuracy": row.accuracy, "compression": row.compression, "λ": row.strength}
        figures = " ".join(
            f"{name} {value:.4g}" for name, value in shown.items() if value is not None
        )
        left = self.until - time.monotonic()
        text = f"[{left:.0f} s left] {row.label}, seed {row.seed}, asked {row.asked}: {row.state}"
        print(f"{text} {row.reason} {figures}, {row.seconds:.0f} s", flush=True)

    def write(self) -> Path:
        """All rows as a study exports them."""
        return write_lines(run_lines(self.rows), self.folder / "rows.csv")


def oversee(
    table: Table, images: dict[str, Pixels] | Callable[[], dict[str, Pixels]], count: int
) -> None:
    """Let so many processes work through the table, until it is done or the time is over."""
    context = multiprocessing.get_context("spawn")
    last = table.until - 1

    def started() -> Worker:
        ours, theirs = context.Pipe()
        arguments = (theirs, table.scale, table.until - GRACE)
        process = context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return Worker(process=process, pipe=ours)

    # They import torch while the images are decoded.
    workers = [started() for _ in range(count)]
    with TemporaryDirectory() as folder:
        for name, array in (images() if callable(images) else images).items():
            np.save(f"{folder}/{name}.npy", array)
        for worker in workers:
            worker.pipe.send(folder)
        again: list[Wish] = []
        while workers and time.monotonic() < last:
            pipes: Any = wait([w.pipe for w in workers], timeout=max(0, last - time.monotonic()))
            for pipe in pipes:
                worker = next(each for each in workers if each.pipe is pipe)
                try:
                    said = pipe.recv()
                    _answer(table, worker, said)
                except (EOFError, OSError):
                    workers.remove(worker)
                    worker.process.join(5)
                    if worker.process.exitcode == 0:
                        continue
                    print(f"-- a process ended with {worker.process.exitcode}", flush=True)
                    # Its runs once more, in a new process; not those that lost one before.
                    lost = [wish for wish in worker.has if wish not in again]
                    again += lost
                    table.left[:0] = lost
                    if table.until - time.monotonic() > 60:
                        workers.append(started())
                        workers[-1].pipe.send(folder)
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _answer(table: Table, worker: Worker, said: Ready | tuple[Wish, Row]) -> None:
    """The next run, where there is room for one; otherwise a row is kept."""
    if isinstance(said, Ready):
        wish = table.next(said)
        if wish is not None:
            worker.has.append(wish)
        worker.pipe.send(wish)
    else:
        worker.has.remove(said[0])
        table.keep(said[1])


# The command.

SMALL = Scale(
    options={"width": 2},
    epochs=2,
    batch=8,
    device="cpu",
    graphs=False,
    small=True,
)
"""A rehearsal: sixteen steps of a narrow network."""


def pretended_images() -> dict[str, Pixels]:
    """A few images of noise, as bytes."""
    draw = np.random.default_rng(0)
    made: dict[str, Pixels] = {}
    for name, count in (("train", 64), ("test", 20)):
        made[f"{name}_x"] = draw.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        made[f"{name}_y"] = draw.integers(10, size=count)
    return made


def main(given: Sequence[str] | None = None) -> None:
    """Work through the table within the time."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cifar_card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--images", help="CIFAR-10 as one file, see read_images")
    parser.add_argument("--seconds", type=float, default=400, help="of everything together")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the rows")
    parser.add_argument("--model", default="resnet-20", help="or resnet-18")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--together", type=int, default=2, help="networks of a process in turn")
    parser.add_argument("--first", type=int, help="only so many runs of the list")
    parser.add_argument("--rehearse", action="store_true", help="small, on the processor")
    asked = parser.parse_args(given)
    if asked.images is None and not asked.rehearse:
        parser.error("--images is missing: CIFAR-10 as one file, see read_images")
    until = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "rows.jsonl").unlink(missing_ok=True)
    scale = Scale(model=asked.model, epochs=asked.epochs)
    scale = replace(SMALL if asked.rehearse else scale, together=asked.together)
    table = Table(wishes()[: asked.first], scale, asked.out, until)
    start = time.monotonic()
    images = pretended_images if asked.images is None else lambda: read_images(asked.images)
    try:
        oversee(table, images, asked.processes)
    finally:
        path = table.write()
    done = sum(row.state == "done" for row in table.rows)
    print(f"-- {done} runs in {time.monotonic() - start:.0f} s: {path}", flush=True)


if __name__ == "__main__":
    main()
