"""What held-out inputs say about a changed network, for any `nn.Module` at all: no structure is
read.

Three statements, each with the level at which it holds. None of them is a worst case.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.copies import evaluating
from secateurs.base.hashing import CERTIFICATE_FORMAT, state_hash
from secateurs.base.parameters import is_sharded
from secateurs.base.printing import AsJson
from secateurs.errors import ArgumentError, DomainError, StructureMismatch
from secateurs.graph.export import outputs_of
from secateurs.graph.untouched import untouched
from secateurs.proof.compared import iterate, of_one_output

# Confidence limits and quantiles of a sample: each says with which probability it holds.


def clopper_pearson(successes: int, trials: int, *, alpha: float) -> float:
    """The exact one-sided upper confidence limit of a binomial probability, level 1 − α.

    >>> round(clopper_pearson(0, 59, alpha=0.05), 3)
    0.05
    """
    # Beta(n + 1, 0) does not exist; if all changed, nothing below 1 can be said.
    if successes == trials:
        return 1.0
    from scipy.stats import beta  # half a second, which no proof needs

    return float(beta.ppf(1 - alpha, successes + 1, trials - successes))


def conformal_level(ordered: Tensor, *, beta: float) -> float:
    """The ⌈(n+1)(1−β)⌉-th smallest value: a fresh exchangeable one exceeds it with probability at
    most β.

    >>> import torch
    >>> conformal_level(torch.arange(1.0, 20.0), beta=0.05)
    19.0
    >>> conformal_level(torch.arange(1.0, 19.0), beta=0.05)
    inf
    """
    # In float64 (n + 1)(1 − β) may come out a last digit above a whole number, and the
    # ceiling would then ask for one input more than the theorem does.
    rank = math.ceil(round((len(ordered) + 1) * (1 - beta), 9))
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def confident_level(ordered: Tensor, *, alpha: float, beta: float) -> float:
    """The smallest value seen that a fresh one exceeds with probability at most β, with confidence
    1 − α over the sample (a one-sided tolerance limit; the PAC form of the conformal level).

    The k-th smallest of n is such a value if P(Binomial(n, 1 − β) ≤ k − 1) ≥ 1 − α: exact for a
    continuous law, safe for any.

    >>> import torch
    >>> confident_level(torch.arange(1.0, 60.0), alpha=0.05, beta=0.05)
    59.0
    >>> confident_level(torch.arange(1.0, 59.0), alpha=0.05, beta=0.05)
    inf

    Reference: Wilks, Determination of sample sizes for setting tolerance limits, 1941.
    """
    from scipy.stats import binom

    # The least k − 1 with P(Binomial ≤ k − 1) ≥ 1 − α is that law's quantile.
    rank = int(binom.ppf(1 - alpha, len(ordered), 1 - beta)) + 1
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


# What to read from a module's result: the tensor to compare, and the classes it predicts.


def first_tensor(result: Any) -> Tensor:
    """The relevant tensor of a module's result: itself, its logits, or the first tensor in it."""
    if isinstance(result, Tensor):
        return result
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, Mapping):
        named = [result[key] for key in ("logits", "out") if key in result]
        return first_tensor(named[0] if named else next(iter(result.values())))
    if isinstance(result, Sequence) and result:
        return first_tensor(result[0])
    raise ArgumentError(
        f"the model returned {type(result).__name__}, which holds no tensor; give output=."
    )


def named_output(result: Any, *, name: str | int) -> Tensor:
    """One of several outputs, by its dotted path or position as `capture` names them."""
    found = outputs_of(result)
    if str(name) not in found:
        raise ArgumentError(
            f"there is no output {str(name)!r}; the model returns {', '.join(found)}."
        )
    return found[str(name)]


def predictions(logits: Tensor) -> Tensor:
    """The predicted class at every position of every input, one row per input.

    Classes lie on the last axis of (N, C) and (N, T, C), on axis 1 of maps (N, C, H, W); one output
    predicts a sign.
    """
    flat = logits.reshape(len(logits), -1)
    if logits.ndim < 2 or flat.shape[1] == 1:
        return flat > 0
    # (N, T, C) has its classes last, like most language models; maps have them second.
    return logits.argmax(dim=-1 if logits.ndim <= 3 else 1).reshape(len(logits), -1)


# How far the outputs of two models are apart on given inputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The deviations on given inputs: their size per input, the largest per output, and the worst
    input; the names of all outputs, the relevant one first, if that is one of them.
    """

    sizes: Tensor
    changed: Tensor
    per_output: Tensor
    worst: Tensor
    outputs: tuple[str, ...]


def observe(
    dense: nn.Module,
    sparse: nn.Module,
    data: Any,
    norm: float,
    output: Callable[[Any], Tensor] | None = None,
) -> Observed:
    """Run both models over the data in eval mode."""
    parts = []
    with (
        torch.no_grad(),
        untouched(dense),
        untouched(sparse),
        evaluating(dense),
        evaluating(sparse),
    ):
        for args, kwargs in _calls(data):
            inputs = next(iter((*args, *kwargs.values())))
            # A loader may end with an empty batch.
            if len(inputs):
                both = [model(*args, **kwargs) for model in (dense, sparse)]
                one, two = map(output or first_tensor, both)
                parts.append(_observed(one, two, inputs, norm, _names(both[0], one)))
    if not parts:
        raise DomainError(
            "data holds no input; give a tensor or an iterable of batches with at least one input."
        )
    sizes = _finite(torch.cat([part.sizes for part in parts]))
    # Sequences may differ in length from batch to batch.
    same = len({part.per_output.shape for part in parts}) == 1
    return Observed(
        sizes=sizes,
        changed=torch.cat([part.changed for part in parts]),
        per_output=(
            torch.stack([part.per_output for part in parts]).amax(dim=0)
            if same
            else sizes.max().reshape(1)
        ),
        worst=max(parts, key=lambda part: float(part.sizes.max())).worst,
        outputs=parts[0].outputs,
    )


def _calls(data: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Positional and keyword arguments of one call per batch; labels are left out."""
    for batch in iterate(data):
        if isinstance(batch, Mapping):
            yield (), {name: x for name, x in batch.items() if name not in {"label", "labels"}}
        else:
            yield (batch[0] if isinstance(batch, Sequence) else batch,), {}


def _names(result: object, chosen: Tensor) -> tuple[str, ...]:
    found = outputs_of(result)
    if not any(value is chosen for value in found.values()):
        return ()  # a function of the outputs, which has no name
    return tuple(sorted(found, key=lambda name: found[name] is not chosen))


def _observed(one: Tensor, two: Tensor, x: Any, norm: float, outputs: tuple[str, ...]) -> Observed:
    if one.shape != two.shape:
        raise StructureMismatch(
            f"the models return different shapes, {tuple(one.shape)} and {tuple(two.shape)}."
        )
    # The subtraction in float64: in float32 it could round away what is measured.
    gap = (one.double() - two.double()).abs()
    sizes = torch.linalg.vector_norm(gap.reshape(len(one), -1), ord=norm, dim=1)
    changed = (predictions(one) != predictions(two)).any(dim=1)
    return Observed(
        sizes=sizes,
        changed=changed,
        per_output=gap.amax(dim=0),
        worst=x[int(sizes.argmax())],
        outputs=outputs,
    )


def _finite(deviations: Tensor) -> Tensor:
    if not bool(deviations.isfinite().all()):
        first = int((~deviations.isfinite()).nonzero()[0])
        raise DomainError(
            f"a model's output is NaN or infinite on input {first} of data; check weights and"
            " inputs."
        )
    return deviations


# The result of `statistical`: three statements, each with the level at which it holds.


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticalCertificate(AsJson):
    """What n held-out inputs say about f and g: an upper confidence limit, a conformal level, the
    largest seen.

    Attributes:
        per_output: The largest deviation seen of each output, in the shape of one output tensor;
            where these differ in shape, `largest` alone.
        worst_input: The input of `largest`.
        states: Hashes of all weights of both networks, by which `save_sparse` knows its own; empty
            where they lie in pieces on several processes.
    """

    samples: int
    changed: int
    change_bound: float
    alpha: float
    deviation_level: float
    confident_level: float
    beta: float
    largest: float
    median: float
    norm: float
    assumptions: tuple[str, ...]
    per_output: Tensor = field(repr=False, compare=False)
    worst_input: Any = field(repr=False, compare=False)
    states: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def _confident(self) -> str:
        level = self.confident_level
        return "no finite level" if math.isinf(level) else f"{level:.4g}"

    def as_dict(self) -> dict[str, Any]:
        """All fields but the worst input as plain values; an infinite level is None."""
        found = AsJson.as_dict(replace(self, worst_input=None))
        del found["worst_input"]
        told = {"per_output": self.per_output.tolist(), "norm": str(self.norm)}
        return {"format": CERTIFICATE_FORMAT, **found, **told}

    def __str__(self) -> str:
        level = (
            "no finite level" if math.isinf(self.deviation_level) else f"{self.deviation_level:.4g}"
        )
        return (
            f"{self.changed} of {self.samples} predictions changed; with confidence"
            f" {1 - self.alpha:g} a fresh input's prediction changes with probability at most"
            f" {self.change_bound:.4g}. A fresh deviation exceeds {level} with probability at most"
            f" {self.beta:g} on average over such samples, and {self._confident} with probability"
            f" at most {self.beta:g} with confidence {1 - self.alpha:g}. Largest seen:"
            f" {self.largest:.4g}."
        )


def _assumptions(alpha: float, beta: float, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """What the three statements assume, and of which output they speak."""
    one = (of_one_output(outputs, None),) if len(outputs) > 1 else ()
    return (
        (
            "the inputs are exchangeable with the fresh one and were not used to choose the"
            " changed network"
        ),
        "both networks evaluated in eval mode, in their own precision",
        f"the limits hold one at a time, at α = {alpha:g} and β = {beta:g}",
        (
            "`deviation_level` holds on average over samples of this size: for about half of"
            " them the true probability is above β; `confident_level` holds for all but a"
            " share α of them"
        ),
        *one,
    )


def statistical(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    data: Any,
    alpha: float = 0.05,
    beta: float = 0.05,
    norm: float = math.inf,
    output: str | int | Callable[[Any], Tensor] | None = None,
) -> StatisticalCertificate:
    """Bound how often, and by how much, `sparse` departs from `dense` on fresh inputs of the same
    source.

    (a) Clopper–Pearson: P(prediction changes) ≤ `change_bound` with confidence 1 − α; (b) split
    conformal: P(‖f(x) − g(x)‖ > `deviation_level`) ≤ β for one fresh exchangeable x, where the
    level is the ⌈(n+1)(1−β)⌉-th smallest deviation seen (infinite when n is too small for β), a
    statement on average over samples; `confident_level` is the same with confidence 1 − α; (c) the
    largest deviation seen.

    Args:
        dense, sparse: any two modules that take the same inputs.
        data: a tensor of inputs, or an iterable of batches: tensors, (inputs, labels), or mappings
            of keywords.
        alpha, beta: the levels, each in (0, 1).
        norm: 1, 2 or inf, over all outputs of one input.
        output: the tensor to compare of what a module returns: its name or position, as `capture`
            names outputs, or a function that picks it; default: the tensor itself, `.logits`, the
            entry "logits" or "out", or the first tensor.

    Assumes: the inputs were drawn like the fresh one and played no part in choosing `sparse`.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> data = torch.randn(99, 3, generator=torch.Generator().manual_seed(0))
    >>> result = statistical(layer, layer, data=data)
    >>> result.changed, round(result.change_bound, 4), result.deviation_level
    (0, 0.0298, 0.0)
    """
    _check_levels(alpha, beta, norm)
    if isinstance(output, str | int):
        output = partial(named_output, name=output)
    seen = observe(dense, sparse, data, norm, output)
    n, changed = len(seen.sizes), int(seen.changed.sum())
    ordered = seen.sizes.sort().values
    return StatisticalCertificate(
        samples=n,
        changed=changed,
        change_bound=clopper_pearson(changed, n, alpha=alpha),
        alpha=alpha,
        deviation_level=conformal_level(ordered, beta=beta),
        confident_level=confident_level(ordered, alpha=alpha, beta=beta),
        beta=beta,
        largest=float(ordered[-1]),
        median=float(ordered[(n - 1) // 2]),
        norm=norm,
        assumptions=_assumptions(alpha, beta, seen.outputs),
        per_output=seen.per_output,
        worst_input=seen.worst,
        states=_states(dense=dense, sparse=sparse),
    )


def _states(**networks: nn.Module) -> dict[str, str]:
    every = (value for model in networks.values() for value in model.state_dict().values())
    if any(is_sharded(value) for value in every):
        return {}
    return {who: state_hash(model) for who, model in networks.items()}


def _check_levels(alpha: float, beta: float, norm: float) -> None:
    wrong = [
        f"{name}={value!r}"
        for name, value in (("alpha", alpha), ("beta", beta))
        if not 0 < value < 1
    ]
    if wrong:
        raise ArgumentError(
            f"{', '.join(wrong)}: a level lies strictly between 0 and 1, for example 0.05."
        )
    if norm not in (1, 2, math.inf):
        raise ArgumentError(f"norm={norm!r} is not offered; choose 1, 2 or inf.")
