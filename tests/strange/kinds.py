"""Layers whose `forward` does more than compute: each a kind, filed under what is strange about it.

A layer takes and returns values of shape (batch, channels, ...) and knows its number of channels.
Its floats are drawn from a generator, so that two builds of one seed are equal and a second seed
gives another network of the same code.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy
import torch
from torch import Tensor, nn

KINDS: dict[str, type["Strange"]] = {}
GROUPS: dict[str, str] = {}


class Strange(nn.Module):
    """`gain` decides whatever a kind computes from floats; a few kinds hold more."""

    def __init__(self, channels: int, g: torch.Generator) -> None:
        super().__init__()
        self.channels = channels
        self.gain = nn.Parameter(torch.randn(channels, generator=g))
        self.register_buffer("level", torch.rand(channels, generator=g) + 0.5)
        self.prepare(g)

    def prepare(self, g: torch.Generator) -> None:
        """What else a kind holds."""

    def scaled(self, h: Tensor, wrong: bool) -> Tensor:
        """What a kind does where it is seen by something it should not have noticed."""
        return 5 * h + 1 if wrong else h


def kind(group: str) -> Callable[[type[Strange]], type[Strange]]:
    """File a kind under its class's name."""

    def file(cls: type[Strange]) -> type[Strange]:
        KINDS[cls.__name__] = cls
        GROUPS[cls.__name__] = group
        return cls

    return file


def along(v: Tensor, h: Tensor) -> Tensor:
    """A vector over the channels, in a shape that broadcasts."""
    return v.reshape(-1, *[1] * (h.ndim - 2))


# --- state and caches -----------------------------------------------------------------------------


@kind("state")
class TableOfLastSize(Strange):
    def prepare(self, g):
        self.size, self.table = None, None

    def forward(self, h):
        if self.size != h.shape[-1]:
            self.table = torch.arange(h.shape[1]).to(h) / 4
            self.size = h.shape[-1]
        return h + along(self.table, h)


@kind("state")
class TableOfLastBatch(Strange):
    def prepare(self, g):
        self.size, self.table = None, None

    def forward(self, h):
        if self.size != len(h):
            self.table = torch.full_like(h, 0.5)
            self.size = len(h)
        return h + self.table


@kind("state")
class TableMadeOnce(Strange):
    """Made by the first call and never again: a tracer's tensor would stay."""

    def prepare(self, g):
        self.table = None

    def forward(self, h):
        if self.table is None:
            self.table = torch.linspace(0, 1, h.shape[1]).to(h)
        return h + along(self.table, h)


@kind("state")
class ScaleOfTheFirstCall(Strange):
    def prepare(self, g):
        self.n, self.scale = 0, 1.0

    def forward(self, h):
        if self.n == 0:
            self.scale = 3.0
        self.n += 1
        return self.scale * h


@kind("state")
class OtherAtTheFirstCall(Strange):
    def prepare(self, g):
        self.n = 0

    def forward(self, h):
        self.n += 1
        return self.scaled(h, self.n == 1)


@kind("state")
class OddAndEvenCalls(Strange):
    def prepare(self, g):
        self.n = 0

    def forward(self, h):
        self.n += 1
        return self.scaled(h, self.n % 2 == 0)


@kind("state")
class OtherFromTheThirdCall(Strange):
    def prepare(self, g):
        self.n = 0

    def forward(self, h):
        self.n += 1
        return self.scaled(h, self.n > 2)


@kind("state")
class CountedCalls(Strange):
    def prepare(self, g):
        self.n = 0
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, h):
        self.n += 1
        self.calls += 1
        return h


@kind("state")
class CountThatScales(Strange):
    """A counter in a buffer, which the next call reads."""

    def prepare(self, g):
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h):
        self.calls += 1
        return h * self.calls


@kind("state")
class LastFeatures(Strange):
    def prepare(self, g):
        self.last = None

    def forward(self, h):
        self.last = h
        return h


@kind("state")
class AllFeatures(Strange):
    def prepare(self, g):
        self.seen = []

    def forward(self, h):
        self.seen.append(h)
        self.seen[:] = self.seen[-4:]
        return h


@kind("state")
class TablesBySize(Strange):
    def prepare(self, g):
        self.tables = {}

    def forward(self, h):
        key = tuple(h.shape[1:])
        if key not in self.tables:
            self.tables[key] = torch.arange(h.shape[1]).to(h) / 8
        return h + along(self.tables[key], h)


@kind("state")
class NestedRecords(Strange):
    def prepare(self, g):
        self.info = SimpleNamespace(calls=0, log=[{"shapes": []}])

    def forward(self, h):
        self.info.calls += 1
        self.info.log[0]["shapes"].append(tuple(h.shape))
        return h


@kind("state")
class ScaleInAContainer(Strange):
    def prepare(self, g):
        self.box = {"scales": [1.0]}

    def forward(self, h):
        if len(self.box["scales"]) == 1:
            self.box["scales"].append(4.0)
        return self.box["scales"][-1] * h


@kind("state")
class RunningMeanInEval(Strange):
    """Statistics that move with every call, evaluation or not, and are used."""

    def prepare(self, g):
        self.register_buffer("mean", torch.zeros(self.channels))

    def forward(self, h):
        dims = [d for d in range(h.ndim) if d != 1]
        self.mean.mul_(0.5).add_(h.detach().mean(dims), alpha=0.5)
        return h - along(self.mean, h)


@kind("state")
class WatchedRange(Strange):
    """An observer: statistics that nobody reads."""

    def prepare(self, g):
        self.register_buffer("top", torch.zeros(()))

    def forward(self, h):
        self.top.copy_(torch.maximum(self.top, h.detach().max()))
        return h


@kind("state")
class ReplacedBuffer(Strange):
    def prepare(self, g):
        self.register_buffer("shift", torch.zeros(self.channels))

    def forward(self, h):
        self.shift = self.level * 2
        return h + along(self.shift, h)


@kind("state")
class ParameterMadeOnFirstUse(Strange):
    def prepare(self, g):
        self.late = None

    def forward(self, h):
        if self.late is None:
            self.late = nn.Parameter(torch.full((h.shape[1],), 0.5, dtype=h.dtype))
        return h * along(self.late, h)


@kind("state")
class BufferMadeOnFirstUse(Strange):
    def forward(self, h):
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.full((h.shape[1],), 0.5, dtype=h.dtype))
        return h + along(self.late, h)


@kind("state")
class ModuleReplacedOnFirstUse(Strange):
    def prepare(self, g):
        self.inner = nn.LeakyReLU(0.5)

    def forward(self, h):
        h = self.inner(h)
        if not isinstance(self.inner, nn.ReLU):
            self.inner = nn.ReLU()
        return h


@kind("state")
class Streaming(Strange):
    """Every call adds a bit of the one before."""

    def prepare(self, g):
        self.before = 0.0

    def forward(self, h):
        out = h + self.before
        self.before = float(h.shape[1]) / 8 + self.before / 2
        return out


@kind("state")
class ChangedOption(Strange):
    """The code changes an option of a module inside."""

    def prepare(self, g):
        self.act = nn.LeakyReLU(0.3)

    def forward(self, h):
        h = self.act(h)
        self.act.negative_slope = 0.0
        return h


@kind("state")
class FrozenByTheCall(Strange):
    def forward(self, h):
        self.gain.requires_grad_(False)
        return h * along(self.gain, h)


@kind("state")
class WeightsClampedInPlace(Strange):
    def forward(self, h):
        with torch.no_grad():
            self.gain.clamp_(-0.5, 0.5)
        return h * along(self.gain, h)


@kind("state")
class WeightsThatDecay(Strange):
    """Every call halves what the next one multiplies by."""

    def forward(self, h):
        with torch.no_grad():
            self.gain.mul_(0.5)
        return h * along(self.gain, h)


@kind("state")
class SwitchedMode(Strange):
    """Puts a module inside into training mode."""

    def prepare(self, g):
        self.drop = nn.Dropout(0.0)

    def forward(self, h):
        self.drop.train()
        return self.drop(h)


@kind("state")
class HookThatGoes(Strange):
    """A hook that works once."""

    def prepare(self, g):
        self.act = nn.Identity()
        self.hook = self.act.register_forward_hook(self._once)

    def _once(self, module, args, output):
        self.hook.remove()
        return output * 2

    def forward(self, h):
        return self.act(h)


_GLOBAL = {"calls": 0}


@kind("state")
class CountedOutside(Strange):
    def forward(self, h):
        _GLOBAL["calls"] += 1
        return h


@functools.lru_cache
def _table(channels: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(channels).to(dtype) / 4


@kind("state")
class CachedOutside(Strange):
    def forward(self, h):
        return h + along(_table(h.shape[1], h.dtype), h)


@kind("state")
class CachedOnTheClass(Strange):
    tables: dict[int, Tensor] = {}  # noqa: RUF012  shared by all layers: that is the point

    def forward(self, h):
        if h.shape[1] not in self.tables:
            self.tables[h.shape[1]] = torch.arange(h.shape[1]) / 4
        return h + along(self.tables[h.shape[1]].to(h), h)


@kind("state")
class DrawnOnceAndKept(Strange):
    """Random numbers drawn by the first call."""

    def prepare(self, g):
        self.signs = None

    def forward(self, h):
        if self.signs is None:
            self.signs = torch.randn(h.shape[1]).sign().to(h)
        return h * along(self.signs, h)


@kind("state")
class Noise(Strange):
    def forward(self, h):
        return h + torch.randn_like(h)


@kind("state")
class NoiseThatIsNotUsed(Strange):
    def forward(self, h):
        torch.rand(3)
        random.random()
        numpy.random.rand()
        return h


@kind("state")
class PythonNoise(Strange):
    def forward(self, h):
        return h * (1 + random.random())


@kind("state")
class OwnGenerator(Strange):
    def prepare(self, g):
        self.own = random.Random(0)

    def forward(self, h):
        self.own.random()
        return h


@kind("state")
class OwnGeneratorThatScales(Strange):
    def prepare(self, g):
        self.own = random.Random(0)

    def forward(self, h):
        return h * (1 + self.own.random())


@kind("state")
class Seeded(Strange):
    """Draws the same numbers in every call, and sets the seed of everybody."""

    def forward(self, h):
        torch.manual_seed(3)
        return h + along(torch.randn(h.shape[1]).to(h), h)


# --- code that notices the tracer -----------------------------------------------------------------


def noticing(name: str, notices: Callable[[Strange, Tensor], bool]) -> None:
    """A kind that answers otherwise where it notices something."""

    def forward(self, h):
        return self.scaled(h, notices(self, h))

    kind("tracer")(type(name, (Strange,), {"forward": forward, "__module__": __name__}))


def _fails(h: Tensor) -> bool:
    """Whether a value can be had."""
    try:
        float(h.detach().sum())
    except Exception:
        return True
    return False


noticing("AsksIsCompiling", lambda s, h: torch.compiler.is_compiling())
noticing("AsksIsExporting", lambda s, h: torch.compiler.is_exporting())
noticing("AsksIsDynamoCompiling", lambda s, h: torch.compiler.is_dynamo_compiling())
noticing("AsksIsTracing", lambda s, h: torch.jit.is_tracing())
noticing("AsksTypeOfValue", lambda s, h: type(h) is not Tensor)
noticing("AsksTypeOfParameter", lambda s, h: type(s.gain) is not nn.Parameter)
noticing("AsksWhetherParameter", lambda s, h: not isinstance(s.gain, nn.Parameter))
noticing("AsksForFakeMode", lambda s, h: hasattr(h, "fake_mode"))
noticing("AsksTypeOfSize", lambda s, h: type(h.shape[0]) is not int)
noticing("AsksGradMode", lambda s, h: torch.is_grad_enabled())
noticing("AsksNoGradMode", lambda s, h: not torch.is_grad_enabled())
noticing("AsksInferenceMode", lambda s, h: torch.is_inference_mode_enabled())
noticing("AsksRequiresGrad", lambda s, h: h.requires_grad)
noticing("AsksForAGraph", lambda s, h: h.grad_fn is not None)
noticing("AsksDoublePrecision", lambda s, h: h.dtype == torch.float64)
noticing("AsksOtherPrecision", lambda s, h: h.dtype != torch.float32)
noticing("AsksContiguous", lambda s, h: not h.is_contiguous())
noticing("AsksForAValue", lambda s, h: _fails(h))
noticing("AsksTypeAndGrad", lambda s, h: type(h) is not Tensor or torch.is_grad_enabled())


@kind("tracer")
class SkipsItsTableWhenTraced(Strange):
    def prepare(self, g):
        self.table = None

    def forward(self, h):
        if torch.compiler.is_compiling():
            return h
        self.table = along(self.level, h)
        return h * self.table


@kind("tracer")
class ReadsAValue(Strange):
    """Plain Python control flow upon a parameter."""

    def forward(self, h):
        return self.scaled(h, bool(self.gain.sum() > 0))


@kind("tracer")
class ReadsAnInput(Strange):
    def forward(self, h):
        return self.scaled(h, bool(h.sum() > 0))


# --- indices computed from floats -----------------------------------------------------------------


def indexed(name: str, order: Callable[[Strange], Tensor]) -> None:
    """A kind that picks channels by an index."""

    def forward(self, h):
        return h[:, order(self)]

    kind("index")(type(name, (Strange,), {"forward": forward, "__module__": __name__}))


def gated(name: str, gate: Callable[[Strange], Tensor]) -> None:
    """A kind that scales channels by what it computes from its floats."""

    def forward(self, h):
        return h * along(gate(self).to(h.dtype), h)

    kind("index")(type(name, (Strange,), {"forward": forward, "__module__": __name__}))


def _picked(s: Strange) -> Tensor:
    return torch.zeros_like(s.gain).index_fill(0, s.gain.topk(2).indices, 1.0)


def _numbered(s: Strange) -> Tensor:
    return (s.level * s.channels).long() % s.channels


indexed("PicksTopK", lambda s: s.gain.topk(s.channels).indices)
indexed("PicksTopKOfABuffer", lambda s: s.level.topk(s.channels).indices)
indexed("PicksArgsort", lambda s: s.gain.argsort())
indexed("PicksSortIndices", lambda s: s.gain.sort(descending=True).indices)
indexed("PicksLongOfABuffer", _numbered)
indexed("PicksIntOfABuffer", lambda s: _numbered(s).int().long())
indexed("PicksArgmax", lambda s: s.gain.argmax().expand(s.channels))
indexed("PicksDetached", lambda s: s.gain.detach().argsort())
indexed("PicksData", lambda s: s.gain.data.argsort())
indexed(
    "PicksBuckets",
    lambda s: torch.bucketize(s.level, s.level.sort().values) % s.channels,
)
indexed("PicksCumsum", lambda s: (s.gain > 0).long().cumsum(0) % s.channels)
indexed("PicksMaxIndices", lambda s: torch.stack([s.gain, s.level]).max(0).indices)
gated("GateOfTopK", _picked)
gated("GateOfSign", lambda s: s.gain.sign())
gated("GateOfComparison", lambda s: s.gain > 0)
gated("GateOfRounding", lambda s: (3 * s.gain).round())
gated("GateOfLong", lambda s: (3 * s.level).long())
gated("GateOfSorted", lambda s: s.gain.sort().values)
gated("GateOfMedian", lambda s: s.gain >= s.gain.median())
gated("GateOfWhere", lambda s: torch.where(s.gain > 0, s.level, torch.zeros(())))
gated("GateOfClamp", lambda s: s.gain.clamp(0, 1))
gated(
    "GateOfOneHot",
    lambda s: nn.functional.one_hot(s.gain.argmax(), s.channels),
)
gated(
    "GateOfScatter",
    lambda s: torch.zeros_like(s.gain).scatter(0, s.gain.argsort()[:2], 1.0),
)
gated("GateOfSoftmax", lambda s: s.gain.softmax(0))
gated("GateOfGathered", lambda s: s.level.gather(0, s.gain.argsort()))


@kind("index")
class PicksByMask(Strange):
    """How many channels come out is decided by values."""

    def forward(self, h):
        picked = h[:, self.gain > self.gain.min()]
        return torch.cat([picked, h[:, :1]], 1)


@kind("index")
class PicksByNonzero(Strange):
    def forward(self, h):
        order = torch.cat([(self.gain > 0).nonzero(), (self.gain <= 0).nonzero()])
        return h[:, order.flatten()]


@kind("index")
class PicksByItem(Strange):
    def forward(self, h):
        first = int(self.gain.argmax())
        return h + h[:, first : first + 1]


@kind("index")
class PicksByList(Strange):
    def forward(self, h):
        return h[:, sorted(range(self.channels), key=self.gain.tolist().__getitem__)]


@kind("index")
class PicksByNumpy(Strange):
    def forward(self, h):
        return h[:, torch.from_numpy(numpy.argsort(self.level.numpy()))]


@kind("index")
class PicksByAFlag(Strange):
    def prepare(self, g):
        self.register_buffer("flag", torch.rand(self.channels, generator=g) > 0.5)

    def forward(self, h):
        return h * along(self.flag.to(h.dtype), h)


@kind("index")
class PicksByAnIntegerBuffer(Strange):
    def prepare(self, g):
        self.register_buffer("order", torch.randperm(self.channels, generator=g))

    def forward(self, h):
        return h[:, self.order]


@kind("index")
class PicksByAnAttribute(Strange):
    """A plain tensor, no buffer: it stands in no state_dict."""

    def prepare(self, g):
        self.order = torch.randperm(self.channels, generator=g)

    def forward(self, h):
        return h[:, self.order]


# --- samples that meet ----------------------------------------------------------------------------


def mixing(name: str, mix: Callable[[Tensor], Tensor]) -> None:
    """A kind in which the other samples of the batch count."""

    def forward(self, h):
        return mix(h)

    kind("batch")(type(name, (Strange,), {"forward": forward, "__module__": __name__}))


mixing("MinusMean", lambda h: h - h.mean(0))
mixing("MinusMeanKept", lambda h: h - h.mean(0, keepdim=True))
mixing("MinusMax", lambda h: h - h.amax(0))
mixing("MinusMeanOfAll", lambda h: h - h.mean())
mixing("PlusSum", lambda h: h + h.sum(0, keepdim=True))
mixing("TimesBatch", lambda h: h * len(h))
mixing("OverBatch", lambda h: h / h.shape[0])
mixing("PlusBatch", lambda h: h + 0.5 * h.size(0))
mixing("PlusFirst", lambda h: h + h[0])
mixing("PlusLast", lambda h: h + h[-1:])
mixing("Flipped", lambda h: h.flip(0))
mixing("Rolled", lambda h: h.roll(1, 0))
mixing("SummedUp", lambda h: h.cumsum(0))
mixing("SoftmaxOfSamples", lambda h: h.softmax(0))
mixing(
    "MinusMeanByReshape",
    lambda h: h - h.reshape(len(h), -1).T.mean(1).view(h.shape[1:]),
)
mixing(
    "PlusPosition",
    lambda h: h + torch.arange(len(h)).to(h).reshape(-1, *[1] * (h.ndim - 1)),
)
mixing("OtherForLargeBatches", lambda h: 2 * h if len(h) > 1 else h)
mixing("OtherForOne", lambda h: 2 * h if len(h) == 1 else h)
mixing("OtherForTwo", lambda h: 2 * h if len(h) == 2 else h)
mixing("OtherForOddBatches", lambda h: 2 * h if len(h) % 2 else h)
mixing("SortedSamples", lambda h: h.sort(0).values)
mixing("CappedBatch", lambda h: h * min(len(h), 3))
mixing(
    "StatisticsOfTheBatch",
    lambda h: (
        nn.functional.batch_norm(h, None, None, training=True) if len(h) > 1 or h.ndim > 2 else h
    ),
)
# These look at the batch, and every sample is alone nevertheless.
mixing("Reshaped", lambda h: h.reshape(len(h), -1).view(h.shape))
mixing("SampleBySample", lambda h: torch.stack([2 * sample for sample in h]))
mixing("InTwoParts", lambda h: torch.cat([part * 2 for part in h.chunk(2, 0)]))
mixing("PlusFilled", lambda h: h + h.new_full((len(h), 1, *[1] * (h.ndim - 2)), 0.5))
mixing("MeanOfCopies", lambda h: torch.stack([h, h]).mean(0))


# --- several outputs: what the whole network returns ----------------------------------------------

ENDS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "OutputAndFeatures": lambda y, h: (y, h),
    "ListOfOutputs": lambda y, h: [y, 2 * y],
    "DictOfOutputs": lambda y, h: {"features": h, "logits": y},
    "DictWithoutLogits": lambda y, h: {"a": y, "b": h},
    "Nested": lambda y, h: {"out": y, "more": [h, (y + 1,)]},
    "WithNone": lambda y, h: (y, None),
    "WithText": lambda y, h: {"logits": y, "kind": "scores"},
    "SameTwice": lambda y, h: (y, y),
    "WithIndices": lambda y, h: (y, y.argmax(1)),
    "WithViews": lambda y, h: (y[:, :1], y[:, 1:]),
    "Fields": lambda y, h: Ends(y, h),
    "DataClass": lambda y, h: Answer(y, h),
    "MappingWithFields": lambda y, h: Record(logits=y, features=h),
}


class Ends(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Answer:
    logits: Tensor
    features: Tensor


class Record(dict):
    """A mapping with attributes, as the outputs of large libraries are."""

    def __init__(self, **values: Tensor) -> None:
        super().__init__(**values)
        self.__dict__.update(values)


def forget() -> None:
    """Empty the caches that live outside of models."""
    _table.cache_clear()
    CachedOnTheClass.tables.clear()
    _GLOBAL["calls"] = 0
