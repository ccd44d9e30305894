"""A network from its weights to a file, as a user takes it: pruned, held for a step of training,
cut, compacted, accelerated, saved and loaded. Every stage is right, or refuses in words and leaves
the model as it was.
"""

import copy
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.graph.export import outputs_of

CLOSE = 1e-3  # of the largest entry of an output: float32, summed in any order


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What became of one stage; seconds are the processor's."""

    name: str
    verdict: Literal["right", "refused", "wrong"]
    said: str
    seconds: float


class Wrong(Exception):
    """An answer that is none."""


@dataclass(kw_only=True)
class Life:
    """A model, what it is called with, and what the stages so far have made of it."""

    model: nn.Module
    example: Any
    dense: nn.Module = field(init=False)
    masks: dict[str, Tensor] = field(default_factory=dict)
    cut: nn.Module = field(init=False)
    small: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.model.eval()
        self.dense = copied(self.model)
        self.cut = self.small = self.model


def live(model: nn.Module, example: Any) -> Iterator[Stage]:
    """The stages one after the other; where one is refused, the next take what was there before."""
    life = Life(model=model, example=example)
    for name, stage in STAGES.items():
        before, start = _marks(life.model), time.process_time()
        try:
            verdict, said = "right", stage(life)
        except SecateursError as error:
            verdict, said = "refused", f"{type(error).__name__}: {error}"
        except Wrong as error:
            verdict, said = "wrong", str(error)
        except Exception as error:
            verdict, said = "wrong", f"raw {type(error).__name__}: {str(error)[:400]}"
        if (verdict == "refused" or stage not in _IN_PLACE) and _marks(life.model) != before:
            verdict, said = "wrong", f"the model has changed; {said}"
        yield Stage(name=name, verdict=verdict, said=said, seconds=time.process_time() - start)


def call(model: nn.Module, example: Any) -> Any:
    """The model called with the example, as the library reads examples."""
    if isinstance(example, dict):
        return model(**example)
    return model(example) if isinstance(example, Tensor) else model(*example)


def copied(model: nn.Module) -> nn.Module:
    """A copy of its own."""
    return copy.deepcopy(model)


# The stages, in order.


def prune(life: Life) -> str:
    """Half of the weights by magnitude; what is kept is as it was."""
    before = {name: p.detach().clone() for name, p in life.model.named_parameters()}
    pruned = sc.prune_(life.model, "magnitude", sparsity=0.5)
    life.masks = dict(pruned.masks)
    for name, p in life.model.named_parameters():
        mask = life.masks.get(name, torch.ones(p.shape, dtype=torch.bool))
        if not torch.equal(p.detach(), before[name] * mask):
            raise Wrong(f"{name} is not what its mask makes of it")
    if not abs(pruned.report.density - 0.5) < 0.01:
        raise Wrong(f"density {pruned.report.density:.4f} was asked to be 0.5")
    _finite(life.model, life.example)
    return f"density {pruned.report.density:.3f}"


def hold(life: Life) -> str:
    """A step of training with momentum, after which every dropped entry is zero."""
    before = {name: p.detach().clone() for name, p in life.model.named_parameters()}
    optimizer = torch.optim.SGD(life.model.parameters(), lr=1e-4, momentum=0.9)
    with sc.hold(life.model, life.masks, optimizer):
        life.model.train()
        try:
            for _ in range(2):
                optimizer.zero_grad()
                _loss(call(life.model, life.example)).backward()
                optimizer.step()
        finally:
            life.model.eval()
    after = dict(life.model.named_parameters())
    grown = [name for name, mask in life.masks.items() if bool(after[name][~mask].any())]
    if grown:
        raise Wrong(f"dropped entries of {', '.join(grown[:3])} are no longer zero")
    if all(torch.equal(before[name], p) for name, p in after.items()):
        raise Wrong("nothing was trained")
    return f"{sum(int((p == 0).sum()) for p in after.values()):,} zeros"


def cut(life: Life) -> str:
    """Half of the channels, exactly: zeros where the masks say so."""
    model = copied(life.model)
    try:
        done = sc.prune_channels_(model, life.example, channels=0.5)
    except SecateursError:
        if _values(model) != _values(life.model):
            raise Wrong("a refused cut has changed the model") from None
        raise
    found = dict(model.named_parameters())
    left = [name for name, mask in done.masks.items() if bool(found[name][~mask].any())]
    if left:
        raise Wrong(f"what was cut of {', '.join(left[:3])} is not zero")
    _finite(model, life.example)
    life.cut = life.small = model
    return "{} of {} channels".format(*done.channels)


def cut_for_good(life: Life) -> str:
    """Half of the channels with exact=False: smaller at once, runs, and goes on training."""
    model = copied(life.model)
    try:
        done = sc.prune_channels_(model, life.example, channels=0.5, exact=False)
    except SecateursError:
        if _values(model) != _values(life.model):
            raise Wrong("a refused cut has changed the model") from None
        raise
    if _entries(model) >= _entries(life.model):
        raise Wrong("no parameter is smaller")
    _finite(model, life.example)
    _loss(call(model.train(), life.example)).backward()
    return "{} of {} channels".format(*done.channels)


def compact(life: Life) -> str:
    """The cut model without its dead channels: the same answers from fewer weights."""
    small = sc.compact(life.cut, life.example)
    apart = _gap(life.cut, small, life.example)
    if _entries(small) > _entries(life.cut):
        raise Wrong("compacted, it is larger")
    life.small = small
    return f"{_entries(small) / _entries(life.dense):.0%} of the weights, apart {apart:.0e}"


def accelerate(life: Life) -> str:
    """A program, or a model with compiled layers, that answers alike."""
    fast = sc.accelerate(life.cut, life.example, tune="guess", keep="always")
    return f"{type(fast).__name__}, apart {_gap(life.cut, fast, life.example):.0e}"


def save(life: Life) -> str:
    """A sparse file of the smallest model so far, read into a copy of the dense one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.st"
        sc.save_sparse(life.small, path)
        loaded = copied(life.dense)
        sc.load_sparse(path, loaded)
    return f"apart {_gap(life.small, loaded, life.example):.0e}"


STAGES: dict[str, Callable[[Life], str]] = {
    "prune": prune,
    "hold": hold,
    "cut": cut,
    "cut, exact=False": cut_for_good,
    "compact": compact,
    "accelerate": accelerate,
    "save and load": save,
}
_IN_PLACE = (prune, hold)


# What is compared.


def _answers(model: nn.Module, example: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        return outputs_of(call(model, example))


def _gap(wanted: nn.Module, given: nn.Module, example: Any) -> float:
    """The largest difference over the largest entry of an output; wrong where it is no rounding."""
    a, b = _answers(wanted, example), _answers(given, example)
    if not a or a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        raise Wrong(f"the outputs are {[*b]} instead of {[*a]}, or have other shapes")
    worst = 0.0
    for name, value in a.items():
        apart = (value.double() - b[name].double()).abs()
        worst = max(worst, float((apart / value.double().abs().max().clamp_min(1e-30)).max()))
        # Not a number is never close.
        if not worst <= CLOSE:
            raise Wrong(f"output {name!r} is {worst:.3g} of its largest entry apart")
    return worst


def _finite(model: nn.Module, example: Any) -> None:
    bad = [name for name, value in _answers(model, example).items() if bool(value.isnan().any())]
    if bad:
        raise Wrong(f"outputs {bad} are not numbers")


def _loss(out: Any) -> Tensor:
    trained = [t for t in outputs_of(out).values() if t.is_floating_point() and t.requires_grad]
    # Not around zero: a fresh head may be zero, and would give no gradient.
    return torch.stack([(t.float() - 1).pow(2).mean() for t in trained]).sum()


def _entries(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _values(model: nn.Module) -> dict[str, str]:
    """All that the model holds, as text: shapes, and a hash of every tensor's bytes."""
    return {
        name: f"{tuple(t.shape)} {hashlib.blake2b(_bytes(t)).hexdigest()}"
        for name, t in [*model.named_parameters(), *model.named_buffers()]
    }


def _marks(model: nn.Module) -> dict[str, object]:
    """The same, with which objects they are and which modules train."""
    held = [*model.named_parameters(), *model.named_buffers()]
    modes = {f"{name} trains": module.training for name, module in model.named_modules()}
    return {**_values(model), **{f"{name} is": id(t) for name, t in held}, **modes}


def _bytes(t: Tensor) -> bytes:
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
