"""Certificates on networks and tasks that others published.

    python benchmarks/third_party.py PATH [--parts acasxu redrawn pruned artefacts pairs …]
        [--seconds 60] [--threads 1] [--out FOLDER] [--boxes 72] [--seeds 1 50]
        [--networks resnet_2b …]

PATH holds checkouts by their usual names; each part runs where what it reads lies there:

acasxu         lukasmrohwer/acasxu-benchmark (isomorphic ACAS Xu, a category of VNN-COMP): for each
               seed the pair that its script makes; do both networks differ by at most 0.05?
redrawn        the same, the 50 pairs that one seed makes: those of VNN-COMP 2026
pruned         lukasmrohwer/acasxu-isomorphic-networks-benchmark: the 45 networks of ACAS Xu, each
               with 5, 10 and 30 % of its neurons pruned; the same question
artefacts      pauls658/NeuroDiff-ASE2020-Artifact: MNIST 3×100 and HAR against their 16-bit copies,
               beside the bounds in its logs (of ReluDiff as well)
pairs          YuantianDing/BoundLab (and jakdar-alabdi/VeryDiff for its published answers,
               stanleybak/vnncomp2021 for more boxes, phK3/VeryDiffPolyExperiments): pairs pruned or
               trained by others, ε and top-1
convolutional  stanleybak/vnncomp2021: resnet_2b, resnet_4b and three networks of oval21, int8 and
               pruned: bound, found, and whether both networks provably keep the class of a box
lirpa          the same boxes by auto_LiRPA (Verified-Intelligence/auto_LiRPA, importable) on the
               merged network f − g, and on f and g alone
alpha          the same with its optimised slopes (α-CROWN, 20 steps), which takes some twenty times
               as long: choose with --networks and --boxes

Rows are appended to FOLDER/third_party_PART.csv as they come, and what is there is left out: a
stopped run goes on. `cpu` is the processor's time, `seconds` the clock's.
"""

import argparse
import copy
import csv
import math
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.proof.domain import box_domain
from secateurs.proof.networks import read_network
from secateurs.proof.top_class import pair_ends
from secateurs.proof.verify import verify
from secateurs.proof.vnnlib import read_vnnlib


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where the checkouts lie, where rows go, and how long one question may take."""

    path: Path
    out: Path
    seconds: float
    boxes: int
    seeds: tuple[int, int]
    networks: tuple[str, ...]

    def checkout(self, name: str) -> Path | None:
        """The folder of a repository, if it is there."""
        if self.path.name == name:
            return self.path
        return self.path / name if (self.path / name).is_dir() else None


class Rows:
    """A file of rows that knows which are there."""

    def __init__(self, path: Path, keys: Sequence[str], others: Sequence[str]) -> None:
        self.path, self.keys = path, tuple(keys)
        self.done: set[tuple[str, ...]] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open() as file:
                self.done = {tuple(row[key] for key in self.keys) for row in csv.DictReader(file)}
        else:
            path.write_text(",".join((*keys, *others)) + "\n")

    def __contains__(self, key: tuple[object, ...]) -> bool:
        return tuple(map(str, key)) in self.done

    def add(self, key: tuple[object, ...], *values: object) -> None:
        row = (*key, *(f"{v:.6g}" if isinstance(v, float) else v for v in values))
        with self.path.open("a") as file:
            csv.writer(file).writerow(row)
        self.done.add(tuple(map(str, key)))
        print(self.path.stem, *row, flush=True)


@contextmanager
def timed() -> Iterator[list[float]]:
    """Clock and processor, in seconds, once it is left."""
    found: list[float] = []
    start, busy = time.monotonic(), time.process_time()
    yield found
    found += [time.monotonic() - start, time.process_time() - busy]


def commit(path: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(path), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True
    ).stdout.strip()


# Isomorphic ACAS Xu.


REDRAWN = 157191271
"""The seed of VNN-COMP's 50 pairs (VNN-COMP/vnncomp2026_benchmarks, 39ef730): no other below it has
the script choose the networks that `instances.csv` names, in their order.
"""


def instances(seed: int, path: Path, folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """The names of networks, their files, and the files of the perturbed ones: every initializer is
    moved by N(0, 0.001²), as the script does.
    """
    draw = random.Random(seed)
    while True:
        name = f"{draw.randint(1, 5)}_{draw.randint(1, 9)}"
        first = path / f"onnx/original/ACASXU_run2a_{name}_batch_2000.onnx"
        model = onnx.load(str(first))
        noises = np.random.RandomState(draw.randint(0, 2**32 - 1))
        for one in model.graph.initializer:
            value = numpy_helper.to_array(one)
            noise = noises.normal(loc=0.0, scale=0.001, size=value.shape).astype(value.dtype)
            one.CopyFrom(numpy_helper.from_array(value + noise, name=one.name))
        second = folder / f"{seed}.onnx"
        onnx.save(model, str(second))
        yield name, first, second


def answered(run: Run, first: Path, second: Path, question: Path) -> Iterator[object]:
    """The cells of a row about one pair."""
    with timed() as took:
        found = verify(first, second, question, seconds=run.seconds)
    cert = found.certificate
    yield from (found.answer, cert.bound, cert.lower_bound, f"{cert.share or 0:.4f}")
    yield parts_of(cert.assumptions)
    yield from (f"{value:.1f}" for value in took)
    yield commit(first.parent)


ANSWERED = ("answer", "bound", "found", "share", "parts", "seconds", "cpu", "commit")


Pairs = Iterator[tuple[int, tuple[str, Path, Path]]]


def acasxu(run: Run) -> None:
    """The first pair of each seed."""
    seeds = range(run.seeds[0], run.seeds[1] + 1)
    _isomorphic(run, "acasxu", "seed", lambda *at: ((s, next(instances(s, *at))) for s in seeds))


def redrawn(run: Run) -> None:
    """The pairs of VNN-COMP's seed."""
    _isomorphic(run, "redrawn", "number", lambda *at: enumerate(_of_competition(*at)))


def _of_competition(path: Path, folder: Path) -> Iterator[tuple[str, Path, Path]]:
    return islice(instances(REDRAWN, path, folder), 50)


def _isomorphic(run: Run, part: str, key: str, drawn: Callable[[Path, Path], Pairs]) -> None:
    path = run.checkout("acasxu-benchmark")
    if path is None:
        print(f"{part}: no acasxu-benchmark here")
        return
    rows = Rows(run.out / f"third_party_{part}.csv", (key,), ("network", *ANSWERED))
    question = path / "vnnlib/instance_0.vnnlib"
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, *pair) in drawn(path, Path(folder)):
            if (number,) not in rows:
                rows.add((number,), name, *answered(run, *pair, question))


def pruned(run: Run) -> None:
    """All pruned networks of ACAS Xu, on the box of the first instance."""
    path = run.checkout("acasxu-isomorphic-networks-benchmark")
    if path is None:
        print("pruned: no acasxu-isomorphic-networks-benchmark here")
        return
    rows = Rows(run.out / "third_party_pruned.csv", ("percent", "network"), ANSWERED)
    box, _, asked = (path / "vnnlib/instance_0.vnnlib").read_text().partition("; Output")
    # As written, it is asked for an input at which they agree.
    (epsilon,) = set(re.findall(r"\(\+ Y_f\[\d\] ([\d.]+)\)", asked))
    apart = " ".join(
        f"(> Y_g[{i}] (+ Y_f[{i}] {epsilon})) (< Y_g[{i}] (- Y_f[{i}] {epsilon}))" for i in range(5)
    )
    with tempfile.TemporaryDirectory() as folder:
        question = Path(folder) / "as_meant.vnnlib"
        question.write_text(f"{box}(assert (or {apart}))")
        for percent, i, j in product((5, 10, 30), range(1, 6), range(1, 10)):
            name = f"ACASXU_run2a_{i}_{j}_batch_2000"
            first = path / f"onnx/nets/{name}.onnx"
            second = path / f"onnx/nets_pruned/{name}_pruned{percent}.onnx"
            if (percent, f"{i}_{j}") not in rows:
                rows.add((percent, f"{i}_{j}"), *answered(run, first, second, question))


def parts_of(assumptions: tuple[str, ...]) -> int:
    """How many parts the box was split into."""
    told = [text for text in assumptions if text.startswith("split: ")]
    return int(told[0].split("largest of ")[1].split()[0]) if told else 1


# The artefacts of NeuroDiff and ReluDiff.


def published(log: Path) -> list[float]:
    """The largest end of the first bound of every input, in the order of the log."""
    found = []
    for block in log.read_text().split("./delta_network_test ")[1:]:
        ends = re.findall(r"^\[(.*)\]$", block, re.MULTILINE)[:2]
        found.append(max(abs(float(word)) for row in ends for word in row.split()))
    return found


def inputs_in(header: Path, entries: int) -> Tensor:
    """The hundred inputs of a C header."""
    rows = re.findall(r"\{([^{}]+)\}", header.read_text())[:100]
    numbers = [[float(word) for word in row.split(",") if word.strip()][:entries] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64)


def artefacts(run: Run) -> None:
    path = run.checkout("NeuroDiff-ASE2020-Artifact")
    if path is None:
        print("artefacts: no NeuroDiff-ASE2020-Artifact here")
        return
    code = path / "DiffNN-Code"
    logs = code / "logs_ASE/icse_exps"
    digits, walks = inputs_in(code / "mnist_tests.h", 784), inputs_in(code / "HAR_tests.h", 561)
    pixels = re.search(
        r"random_pixels\[100\]\[30\] = \{(.*)\};", (code / "mnist_tests.h").read_text(), re.DOTALL
    )
    assert pixels is not None
    free = [
        [int(word) for word in row.split(",")[:3]] for row in re.findall(r"\{(.*?)\}", pixels[1])
    ]
    lo, hi = digits / 255, digits / 255
    for number, places in enumerate(free):
        lo[number, places], hi[number, places] = 0.0, 1.0
    mnist = [
        read_network(code / name)
        for name in ("nnet/mnist_relu_3_100.nnet", "compressed_nnets/mnist_relu_3_100_16bit.nnet")
    ]
    # Their copy of HAR is made by a script (python/round_nnet.py): every weight through 16 bits.
    har = [read_network(code / "nnet/HAR.nnet") for _ in range(2)]
    with torch.no_grad():
        for weight in har[1].parameters():
            weight.copy_(weight.half().float())
    cases = {
        "MNIST ±3/255": (
            mnist,
            (((digits - 3) / 255).clamp(0, 1), ((digits + 3) / 255).clamp(0, 1)),
            "exec-time_out_mnist_relu_3_100_16bit.nnet",
        ),
        "MNIST 3 pixels": (mnist, (lo, hi), "exec-time_out_pix_mnist_relu_3_100_16bit.nnet"),
        "HAR ±0.1": (
            har,
            ((walks - 0.1).clamp(-1, 1), (walks + 0.1).clamp(-1, 1)),
            "HAR_exec-time_out",
        ),
    }
    rows = Rows(
        run.out / "third_party_artefacts.csv",
        ("case", "input"),
        ("ours", "found", "neurodiff", "reludiff", "seconds", "cpu", "commit"),
    )
    for case, (pair, box, log) in cases.items():
        if (case, 99) in rows:
            continue
        with timed() as took:
            cert = sc.certify(*pair, box=box, generator=torch.Generator().manual_seed(0))
        theirs = [published(logs / name / log) for name in ("neurodiff", "reludiff")]
        for number in range(100):
            if (case, number) not in rows:
                rows.add(
                    (case, number),
                    float(cert.balls[number]),
                    float(cert.lower_balls[number]),
                    *(bounds[number] for bounds in theirs),
                    # All inputs are one call.
                    *(f"{value / 100:.3f}" for value in took),
                    commit(path),
                )


# Pairs that others pruned or trained.


@dataclass(frozen=True, kw_only=True)
class Question:
    """Two files, a box, and what is asked: ε, or a lead under which the class may change."""

    pair: str
    first: Path
    second: Path
    box: Path
    epsilon: float | None = None
    # The softmax of f above which the class has to stay; 0 everywhere.
    confidence: float = 0.0
    # Of VeryDiff: the folder of its results, and the names there.
    told: tuple[str, str, str] | None = None

    @property
    def asked(self) -> str:
        if self.epsilon is not None:
            return f"ε = {self.epsilon:g}"
        return "top-1" + f" above {self.confidence:g}" * (self.confidence > 0)

    def options(self) -> dict[str, Any]:
        if self.epsilon is not None:
            return {"epsilon": self.epsilon}
        p = self.confidence
        return {"claim": "top-1", "margin": math.log(p / (1 - p)) if p else 0.0}


def written_box(path: Path, lo: Tensor, hi: Tensor) -> Path:
    """As VNN-LIB 1."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lo))] + ["(declare-const Y_0 Real)"]
    for i, (low, high) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
        lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
    path.write_text("\n".join(lines))
    return path


def questions(run: Run, folder: Path) -> Iterator[Question]:
    bound_lab = run.checkout("BoundLab")
    competition = run.checkout("vnncomp2021")
    if bound_lab is not None:
        examples = bound_lab / "compare/verydiff/examples"
        nets, specs = examples / "nets", examples / "specs"
        for confidence in (0.0, 0.8, 0.9, 0.99, 0.999):
            told = (f"lhc-top1-{confidence:g}-600", "2_80-1-0.1", "sigma_0.1")
            yield Question(
                pair="LHC 2_80, pruned",
                first=nets / "2_80-1.onnx",
                second=nets / "2_80-1-0.1.onnx",
                box=specs / "sigma_0.1.vnnlib",
                confidence=confidence,
                told=told if confidence else None,
            )
        for name in ("mnist_0_local_15", "mnist_7_local_15"):
            for epsilon in (1.0, 0.1, None):
                yield Question(
                    pair="MNIST 3×100, 5 % pruned",
                    first=nets / "mnist_relu_3_100.onnx",
                    second=nets / "mnist_relu_3_100_pruned5.onnx",
                    box=specs / f"{name}.vnnlib",
                    epsilon=epsilon,
                )
        boxes = [specs / "prop_1.vnnlib"]
        if competition is not None:
            acas = competition / "benchmarks/acasxu"
            boxes += [acas / f"prop_{i}.vnnlib" for i in (2, 3, 4, 5, 7, 8, 9, 10)]
        for box in boxes:
            for epsilon in (0.5, 0.05):
                yield Question(
                    pair="ACAS Xu 1_1, 5 % pruned",
                    first=nets / "ACASXU_run2a_1_1_batch_2000.onnx",
                    second=nets / "ACASXU_run2a_1_1_batch_2000_pruned5.onnx",
                    box=box,
                    epsilon=epsilon,
                    told=(
                        "acas-0.05-120" if epsilon == 0.05 else "acas-0.5",
                        "ACASXU_run2a_1_1_batch_2000_pruned5",
                        box.stem,
                    ),
                )
        yield Question(
            pair="one layer, two networks",
            first=nets / "single_layer_relu_ref.onnx",
            second=nets / "single_layer_relu_alt.onnx",
            box=specs / "single_layer_box.vnnlib",
            epsilon=0.1,
        )
    trained = run.checkout("VeryDiffPolyExperiments")
    if trained is None:
        return
    # Networks of one shape, trained with other penalties: not copies of each other.
    yield Question(
        pair="HELOC, two trainings",
        first=trained / "networks/heloc/heloc.onnx",
        second=trained / "networks/heloc/heloc_2e5.onnx",
        box=written_box(folder / "unit_cube.vnnlib", torch.zeros(23), torch.ones(23)),
        epsilon=1.0,
    )
    artefact = run.checkout("NeuroDiff-ASE2020-Artifact")
    if artefact is not None:
        walks = inputs_in(artefact / "DiffNN-Code/HAR_tests.h", 561)[:2]
        for number, x in enumerate(walks):
            for other in ("har_1e4", "har_2e5"):
                yield Question(
                    pair=f"HAR, har and {other}",
                    first=trained / "networks/har/har.onnx",
                    second=trained / f"networks/har/{other}.onnx",
                    box=written_box(folder / f"har_{number}.vnnlib", x - 0.01, x + 0.01),
                )
    if competition is not None:
        for depth in (4, 6):
            for other in ("1e4", "2e5"):
                for number in (0, 1):
                    yield Question(
                        pair=f"MNIST 256×{depth}, net and {other}",
                        first=trained / f"networks/mnist/mnist-net_256x{depth}.onnx",
                        second=trained / f"networks/mnist/mnist_256x{depth}_{other}.onnx",
                        box=competition / f"benchmarks/mnistfc/prop_{number}_0.03.vnnlib",
                    )


def their_answer(run: Run, told: tuple[str, str, str] | None) -> tuple[str, str]:
    """Of VeryDiff, from its published results: the answer, and the seconds it took."""
    path = run.checkout("VeryDiff")
    if path is None or told is None:
        return "", ""
    folder, pair, box = told
    results = path / f"dev/experiments/experiments_final/VeryDiff/{folder}/results.csv"
    for row in csv.reader(results.open()):
        if [word.strip() for word in row[:2]] == [pair, box]:
            words = {"SAFE": "unsat", "UNSAFE": "sat", "UNKNOWN": "unknown"}
            return words[row[2].strip()], f"{float(row[3]) / 1e9:.1f}"
    return "", ""


def pairs(run: Run) -> None:
    rows = Rows(
        run.out / "third_party_pairs.csv",
        ("pair", "box", "asked"),
        (
            "answer",
            "bound",
            "found",
            "share",
            "seconds",
            "cpu",
            "theirs",
            "their_seconds",
            "remark",
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        for one in questions(run, Path(folder)):
            key = (one.pair, one.box.stem, one.asked)
            if key in rows:
                continue
            remark = ""
            try:
                with timed() as took:
                    found = verify(
                        one.first, one.second, one.box, seconds=run.seconds, **one.options()
                    )
            except SecateursError as error:
                rows.add(key, "error", "", "", "", "", "", *their_answer(run, one.told), str(error))
                continue
            cert = found.certificate
            share = cert.share if cert.claim is None else cert.claim.share
            if found.witness is not None and one.confidence:
                # Replayed: does the file's own softmax say that f is as sure?
                remark = f"f's softmax at the witness: {float(found.witness[1].max()):.4f}"
            rows.add(
                key,
                found.answer,
                cert.bound,
                cert.lower_bound,
                f"{share or 0:.3f}",
                *(f"{value:.1f}" for value in took),
                *their_answer(run, one.told),
                "; ".join((remark, *found.remarks)).strip("; "),
            )


# Convolutional networks of VNN-COMP 2021.

NETWORKS = ("resnet_2b", "resnet_4b", "cifar_base_kw", "cifar_wide_kw", "cifar_deep_kw")
VARIANTS = ("int8", "10 %", "20 %")


def boxes_of(run: Run, name: str) -> tuple[Path, list[Path]]:
    """The file of a network, and those of its boxes."""
    path = run.checkout("vnncomp2021")
    assert path is not None
    folder = path / "benchmarks" / ("cifar10_resnet" if name.startswith("resnet") else "oval21")
    with (folder / f"{folder.name}_instances.csv").open() as file:
        found = [row for row in csv.reader(file) if name in row[0]]
    return folder / found[0][0], [folder / row[1] for row in found]


def changed(f: nn.Module, variant: str) -> nn.Module:
    g = copy.deepcopy(f)
    if variant == "int8":
        # As our sparse files round: one scale a row, w ≈ s·q, q in −127…127.
        with torch.no_grad():
            for weight in g.parameters():
                rows = weight.flatten(1) if weight.ndim > 1 else None
                if rows is not None:
                    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
                    weight.copy_(((rows / scale).round() * scale).reshape(weight.shape))
    else:
        sc.prune_(g, "magnitude", sparsity=float(variant.split()[0]) / 100)
    return g


def over_boxes(
    run: Run, part: str, fields: Sequence[str], work: Callable[..., Sequence[object]]
) -> None:
    """One row a network, change and box; the first boxes of all networks before the second."""
    path = run.checkout("vnncomp2021")
    if path is None:
        print(f"{part}: no vnncomp2021 here")
        return
    rows = Rows(
        run.out / f"third_party_{part}.csv",
        ("network", "change", "box"),
        (*fields, "seconds", "cpu", "commit"),
    )
    most = max(len(boxes_of(run, name)[1]) for name in run.networks)
    for number in range(min(most, run.boxes)):
        for name in run.networks:
            file, boxes = boxes_of(run, name)
            if number >= len(boxes):
                continue
            f = read_network(file)
            question = read_vnnlib(boxes[number])
            lo, hi = (
                torch.tensor(end, dtype=torch.float64).reshape(1, 3, 32, 32)
                for end in (question.lo, question.hi)
            )
            with torch.no_grad():
                # As the file has it: these boxes are around images that the network gets right.
                label = int(f(((lo + hi) / 2).float()).argmax())
            for variant in VARIANTS:
                if (name, variant, number) not in rows:
                    g = changed(f, variant)
                    with timed() as took:
                        values = work(f, g, lo, hi, label)
                    rows.add(
                        (name, variant, number),
                        *values,
                        *(f"{value:.1f}" for value in took),
                        commit(path),
                    )


def bounded(f: nn.Module, g: nn.Module, lo: Tensor, hi: Tensor, label: int) -> Sequence[object]:
    """Bound, what was found, and whether each network provably keeps the class on the whole box."""
    cert = sc.certify(
        f,
        g,
        box=(lo, hi),
        methods=["interval", "linear"],
        generator=torch.Generator().manual_seed(0),
    )
    ends = pair_ends(cert.problem, box_domain((lo, hi), example=None))[0]
    one, two = torch.triu_indices(cert.problem.outputs, cert.problem.outputs, offset=1)
    # y_i − y_j for i < j: the class leads if it is i and the low end is above 0, or j and the high
    # end below.
    kept = [
        bool((ends[low][one == label] > 0).all() and (ends[low + 1][two == label] < 0).all())
        for low in (0, 2)
    ]
    return cert.bound, cert.lower_bound, int(kept[0]), int(kept[1]), int(all(kept))


def convolutional(run: Run) -> None:
    over_boxes(run, "convolutional", ("bound", "found", "f_keeps", "g_keeps", "both"), bounded)


class Merged(nn.Module):
    """f − g as one network."""

    def __init__(self, f: nn.Module, g: nn.Module) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x: Tensor) -> Tensor:
        difference: Tensor = self.f(x) - self.g(x)
        return difference


def by_lirpa(
    f: nn.Module, g: nn.Module, lo: Tensor, hi: Tensor, label: int, method: str = "CROWN"
) -> Sequence[object]:
    """CROWN on f − g, and on f and g alone with the differences of the class to the others."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    low, high = lo.float(), hi.float()
    options = {"optimize_bound_args": {"iteration": 20}}
    x = BoundedTensor((low + high) / 2, PerturbationLpNorm(norm=math.inf, x_L=low, x_U=high))
    merged = BoundedModule(Merged(f, g), (low + high) / 2, bound_opts=options)
    ends = merged.compute_bounds(x=(x,), method=method)
    bound = float(torch.cat(ends).abs().max())
    rows = torch.eye(10)[label] - torch.eye(10)[torch.arange(10) != label]
    kept = []
    for network in (f, g):
        alone = BoundedModule(network, (low + high) / 2, bound_opts=options)
        margin, _ = alone.compute_bounds(
            x=(x,), C=rows.unsqueeze(0), method=method, bound_upper=False
        )
        kept.append(bool((margin > 0).all()))
    return bound, int(kept[0]), int(kept[1]), int(all(kept))


def lirpa(run: Run, method: str = "CROWN") -> None:
    part = "lirpa" if method == "CROWN" else "alpha"
    try:
        import auto_LiRPA  # noqa: F401
    except ImportError:
        print(f"{part}: auto_LiRPA is not installed here")
        return
    work = partial(by_lirpa, method=method)
    over_boxes(run, part, ("bound", "f_keeps", "g_keeps", "both"), work)


def alpha(run: Run) -> None:
    lirpa(run, "alpha-CROWN")


_ALL = (acasxu, redrawn, pruned, artefacts, pairs, convolutional, lirpa, alpha)
PARTS = {one.__name__: one for one in _ALL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    usual = [name for name in PARTS if name != "alpha"]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=usual)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 50))
    parser.add_argument("--boxes", type=int, default=72)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("third_party"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    run = Run(
        path=args.path.resolve(),
        out=args.out,
        seconds=args.seconds,
        boxes=args.boxes,
        seeds=tuple(args.seeds),
        networks=tuple(args.networks),
    )
    for name in args.parts:
        PARTS[name](run)


if __name__ == "__main__":
    main()
