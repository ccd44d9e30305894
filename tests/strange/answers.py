"""What public functions answer about a strange network, compared with plain torch.

A checker calls one function and says what is wrong with its answer. The oracle is always a network
built anew from the same seed, which the library has never seen, called as a user calls it: several
batches in a row, with gradients and without.
"""

import ctypes
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.ship.c_source import c_source
from strange.kinds import forget
from strange.networks import Case
from strange.snapshot import changes, snapshot
from strange.twin import twin

BATCHES = (2, 5, 1)
MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
RADIUS = 0.25
CLOSE = 1e-4  # of the largest output: float32, summed in any order
Check = Callable[[Case], list[str]]
CHECKS: dict[str, Check] = {}


@dataclass
class Outcome:
    """Of one function on one network: what is wrong, or why it refused; neither is an answer."""

    wrong: list[str] = field(default_factory=list)
    refused: str = ""


class Changed(Exception):
    """What promised to change nothing changed something."""


def checks(name: str) -> Callable[[Check], Check]:
    """File a checker under the name of the function it calls."""

    def file(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return file


def outcome(name: str, case: Case) -> Outcome:
    """Whether a function is right or refuses, and leaves everything as it was."""
    forget()
    try:
        return Outcome(wrong=CHECKS[name](case))
    except SecateursError as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:600]}"
        return Outcome(wrong=[f"neither an answer nor a refusal: {text}"])


@contextmanager
def untouched(case: Case, *models: nn.Module) -> Iterator[None]:
    """Whatever is answered or raised inside: models and process are as before, bit for bit."""
    before = [snapshot(model) for model in models]
    try:
        yield
    finally:
        after = [snapshot(model) for model in models]
        for then, now in zip(before, after, strict=True):
            if found := changes(then, now):
                raise Changed("; ".join(found[:4]))
        for number, model in enumerate(models):
            oracle = case.fresh(other=number == 1)
            if gap(answers(oracle, case), answers(model, case)):
                raise Changed("the model answers otherwise than before")


def answers(model: nn.Module, case: Case) -> list[list[Tensor]]:
    """All outputs of calls in a row, of every size in every mode."""
    found = []
    for number, mode in enumerate(MODES):
        for batch in BATCHES:
            seeded(11)
            with mode():
                out = model(case.inputs(batch, seed=batch + 10 * number))
            found.append([leaf.detach().clone() for leaf in leaves(out)])
    return found


def seeded(seed: int) -> None:
    """Random numbers of all three kinds from the beginning."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def leaves(out: object) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, Mapping):
        return [t for value in out.values() for t in leaves(value)]
    if is_dataclass(out):
        return [t for f in fields(out) for t in leaves(getattr(out, f.name))]
    if isinstance(out, list | tuple):
        return [t for value in out for t in leaves(value)]
    return []


def main(out: object) -> Tensor:
    """The output that is analysed where a model returns several."""
    for name in ("logits", "out"):
        if isinstance(out, Mapping) and name in out:
            return out[name]
        if not isinstance(out, Tensor) and hasattr(out, name):
            return getattr(out, name)
    return leaves(out)[0]


def gap(one: list[list[Tensor]], two: list[list[Tensor]]) -> float:
    """The largest difference, in shares of the largest output; infinite where shapes differ."""
    worst = 0.0
    for left, right in zip(one, two, strict=True):
        if [t.shape for t in left] != [t.shape for t in right]:
            return float("inf")
        for a, b in zip(left, right, strict=True):
            apart = float((a.double() - b.double()).abs().max())
            worst = max(worst, apart / (float(a.abs().max()) + 1e-6))
            # A NaN is a difference, and no number is larger than it.
            worst = float("inf") if apart != apart else worst
    return worst


def same(case: Case, model: nn.Module) -> list[str]:
    """Whether a model made from the case's network answers like that network."""
    forget()
    wanted = answers(case.fresh(), case)
    forget()
    apart = gap(wanted, answers(model, case))
    return [] if apart <= CLOSE else [f"differs from the model by {apart:.3g}"]


@checks("macs")
def macs(case: Case) -> list[str]:
    model = case.fresh()
    with untouched(case, model):
        found = sc.macs(model, case.inputs(1)).dense
    wanted = [_multiplications(case, batch) for batch in BATCHES]
    return [] if {found} == {*wanted} else [f"{found} multiplications, not {wanted}"]


def _multiplications(case: Case, batch: int) -> float:
    model, count = case.fresh(), 0

    def add(module: nn.Module, args: object, output: Tensor) -> None:
        nonlocal count
        weight = module.weight
        count += weight.numel() * output.numel() // weight.shape[0]

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(add)
    model(case.inputs(batch))
    return count / batch


@checks("path_norm")
def path_norm(case: Case) -> list[str]:
    """Both networks of one code: the second one's answer must not be the first one's."""
    wrong = []
    for other in (False, True):
        model = case.fresh(other=other)
        before = snapshot(model)
        try:
            found = sc.path_norm(model, case.inputs(1))
        finally:
            if changes(before, snapshot(model)):
                raise Changed("; ".join(changes(before, snapshot(model))[:4]))
        steepest = _steepest(case, other=other)
        if float(found) < steepest * (1 - CLOSE):
            wrong.append(f"path norm {float(found):.4g} below a slope {steepest:.4g}")
        plain = twin(case, other=other)
        if plain is not None:
            wanted = float(sc.path_norm(plain, case.inputs(1)))
            if abs(float(found) - wanted) > CLOSE * wanted:
                wrong.append(f"path norm {float(found):.6g}, of a twin {wanted:.6g}")
    return wrong


def _steepest(case: Case, *, other: bool) -> float:
    """The largest ‖f(x) − f(y)‖₁ / ‖x − y‖_∞ that is seen."""
    worst = 0.0
    for mode in MODES[:2]:
        for batch in BATCHES:
            # One call each in a row is what a network with a memory can be asked.
            model = case.fresh(other=other)
            x, y = case.inputs(batch, seed=1), case.inputs(batch, seed=2)
            with mode():
                seeded(3)
                one = main(model(x)).detach().double()
                seeded(3)
                two = main(model(y)).detach().double()
            apart = (one - two).flatten(1).abs().sum(1)
            near = (x - y).flatten(1).abs().amax(1)
            worst = max(worst, float((apart / near).max()))
    return worst


@checks("certify")
def certify(case: Case) -> list[str]:
    """Two networks of one code: every difference seen lies below the bound."""
    f, g = case.fresh(), case.fresh(other=True)
    center = case.inputs(2, seed=4)
    with untouched(case, f, g):
        g_ = torch.Generator().manual_seed(0)
        options = {"restarts": 1, "steps": 2, "generator": g_}
        cert = sc.certify(f, g, around=center, radius=RADIUS, **options)
    alone = any("alone" in line for line in cert.assumptions)
    wrong = []
    for mode in MODES:
        f, g = case.fresh(), case.fresh(other=True)
        for batch in (1,) if alone else BATCHES:
            x = center[torch.arange(batch) % 2]
            x = x + RADIUS * (2 * torch.rand(x.shape) - 1).sign()
            with mode():
                seeded(3)
                one = main(f(x)).detach().double()
                seeded(3)
                two = main(g(x)).detach().double()
            seen = float((one - two).abs().max())
            if not seen <= cert.bound * (1 + CLOSE) + 1e-6:
                wrong.append(f"bound {cert.bound:.4g}, seen {seen:.4g} in {batch}")
    return wrong[:2]


@checks("compact")
def compact(case: Case) -> list[str]:
    model = case.fresh()
    with untouched(case, model):
        small = sc.compact(model, case.inputs(1))
    return same(case, small)


@checks("accelerate")
def accelerate(case: Case) -> list[str]:
    model = case.fresh()
    with untouched(case, model):
        fast = sc.accelerate(model, case.inputs(1), tune="guess", keep="always")
    return same(case, fast)


@checks("c_source")
def c_source_(case: Case) -> list[str]:
    model = case.fresh()
    with untouched(case, model):
        text = c_source(model, case.inputs(1))
    oracle, wrong = case.fresh(), []
    for seed in range(3):
        x = case.inputs(1, seed=seed)
        with torch.no_grad():
            wanted = main(oracle(x))
        if apart := gap([[wanted]], [[_predicted(text, x, wanted)]]):
            wrong += [] if apart <= CLOSE else [f"differs from the model by {apart:.3g}"]
    return wrong


def _predicted(text: str, x: Tensor, like: Tensor) -> Tensor:
    compiler = shutil.which("gcc") or shutil.which("cc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "net.c"), Path(folder, "net.so")
        source.write_text(text)
        options = ["-std=c99", "-O0", "-shared", "-fPIC", "-lm"]
        subprocess.run([compiler, str(source), "-o", str(library), *options], check=True)
        y = torch.full_like(like, float("nan")).contiguous()
        predict = ctypes.CDLL(str(library)).predict
        predict(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
    return y


@checks("normalize_")
def normalize(case: Case) -> list[str]:
    model = case.fresh()
    with _refusing(case, model):
        sc.normalize_(model, case.inputs(1))
    return same(case, model)


@checks("prune_channels_")
def prune_channels(case: Case) -> list[str]:
    """Weights stay or become zero; nothing else moves; what compacts computes the same."""
    model = case.fresh()
    before = snapshot(model, parameters=False)
    with _refusing(case, model):
        sc.prune_channels_(model, case.inputs(1), channels=0.7)
    wrong = changes(before, snapshot(model, parameters=False))
    for (name, now), then in zip(model.named_parameters(), case.fresh().parameters(), strict=True):
        if not bool(((now == then) | (now == 0)).all()):
            wrong.append(f"{name} has entries that are neither old nor zero")
    return wrong


@contextmanager
def _refusing(case: Case, model: nn.Module) -> Iterator[None]:
    """A function that changes the model in place leaves it alone where it refuses."""
    before = snapshot(model)
    try:
        yield
    except BaseException:
        if changes(before, snapshot(model)):
            raise Changed("; ".join(changes(before, snapshot(model))[:4])) from None
        raise
