"""Watching a factorized run: sparsity, norms, misalignment, penalties; when sparsity sets in, and
the three phases.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.base.sharding import whole
from secateurs.errors import ArgumentError
from secateurs.optim.factorized.maths import EPS
from secateurs.optim.factorized.members import Group, layout
from secateurs.optim.factorized.optimizer import FactorizedOptimizer
from secateurs.optim.factorized.strength import multiplier as multiplier_now

PhaseName: TypeAlias = Literal["fit", "reorganisation", "sparsification"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSample:
    """One parameter after one step: share of zeros, ‖w‖, λ as it is now, and its part of the
    penalty.

    The penalty of its factors, (λ/D) Σ‖ω‖², is the least that any factors of this weight have
    (λ‖w‖_{2/D}^{2/D}) plus the excess λ·M(ω); `misalignment` is M(ω) ≥ 0, zero for balanced
    factors.
    """

    sparsity: float
    norm: float
    misalignment: float
    strength: float
    minimal_penalty: float
    excess_penalty: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The whole net after one step: loss as given, the penalties of all parameters, and each
    parameter.

    `strength` is the largest λ; where groups differ, each layer has its own.
    """

    step: int
    loss: float
    strength: float
    minimal_penalty: float
    excess_penalty: float
    sparsity: float
    norm: float
    layers: dict[str, LayerSample]

    @property
    def misalignment(self) -> float:
        """M(ω) of all factorized parameters."""
        return sum(layer.misalignment for layer in self.layers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps `start` to `stop` (exclusive; None = to the end)."""

    name: PhaseName
    start: int
    stop: int | None


class Dynamics:
    """A recorder for any loop: `record(loss)` after `optimizer.step()`; then read `samples`,
    `onset`, `phases`.

    One sample per step at most: a step that was skipped (a gradient that is not finite) leaves
    none.

    Args:
        optimizer: a factorized optimizer.
        every: steps between two samples; a sample costs about as much as a step.
        model: where parameter names come from.
        threshold: |w| below it counts as zero.

    >>> from secateurs.optim.factorized.sgd import FactorizedSGD
    >>> layer = nn.Linear(4, 2)
    >>> optimizer = FactorizedSGD(layer.parameters(), lr=0.1, strength=0.1)
    >>> dynamics = Dynamics(optimizer, model=layer)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     loss = layer(torch.ones(1, 4)).square().sum()
    ...     loss.backward()
    ...     optimizer.step()
    ...     dynamics.record(loss)
    >>> [sample.step for sample in dynamics.samples], sorted(dynamics.samples[0].layers)
    ([1, 2, 3], ['bias', 'weight'])
    """

    def __init__(
        self,
        optimizer: FactorizedOptimizer,
        *,
        every: int = 1,
        model: nn.Module | None = None,
        threshold: float = EPS,
    ) -> None:
        if not isinstance(optimizer, FactorizedOptimizer):
            raise ArgumentError(
                "Dynamics watches the factors of a factorized optimizer;"
                f" {type(optimizer).__name__} has none."
            )
        if every < 1:
            raise ArgumentError(
                f"every={every}: give 1 to record every step, or a larger number to record fewer."
            )
        if not 0 < threshold < math.inf:
            raise ArgumentError(
                f"threshold={threshold}: give a positive number; weights below it count as zero."
            )
        self.samples: list[Sample] = []
        self._optimizer, self._every, self._model, self._threshold = (
            optimizer,
            every,
            model,
            threshold,
        )
        self._skipped = len(optimizer.skipped)

    @torch.no_grad()
    def record(self, loss: Tensor | float) -> None:
        """Take a sample if one is due."""
        if not self._due():
            return
        optimizer = self._optimizer
        names, multiplier = (
            optimizer.names(self._model),
            multiplier_now(optimizer.members, optimizer.length),
        )
        sizes = {names[p]: p.numel() for _, p in optimizer.factorized()}
        layers = {
            names[p]: self._layer(group, p, multiplier) for group, p in optimizer.factorized()
        }
        zeros = sum(layers[name].sparsity * size for name, size in sizes.items())
        self.samples.append(
            Sample(
                step=optimizer.taken,
                loss=float(loss),
                strength=max((layer.strength for layer in layers.values()), default=0.0),
                minimal_penalty=sum(layer.minimal_penalty for layer in layers.values()),
                excess_penalty=sum(layer.excess_penalty for layer in layers.values()),
                sparsity=zeros / max(1, sum(sizes.values())),
                # hypot does not overflow where the squares would.
                norm=math.hypot(*(layer.norm for layer in layers.values())),
                layers=layers,
            )
        )

    def _due(self) -> bool:
        """Not after a skipped step, nor twice after one step."""
        taken, skipped = self._optimizer.taken, len(self._optimizer.skipped)
        # A skipped step leaves weights and step number as they were: a second sample would add
        # nothing.
        fresh, self._skipped = skipped == self._skipped, skipped
        return (
            fresh
            and taken % self._every == 0
            and not (self.samples and self.samples[-1].step == taken)
        )

    def onset(self, share: float = 0.01) -> int | None:
        """The first recorded step with more than this share of zeros; None if sparsity never sets
        in.
        """
        return next((sample.step for sample in self.samples if sample.sparsity > share), None)

    def phases(self) -> tuple[Phase, ...]:
        """The three phases of section 4.3, by rules: the fit ends where ‖w‖ is smallest before it
        grows for good or sparsity sets in; the reorganisation ends at the onset of sparsity; the
        rest is sparsification.

        A run in which sparsity never sets in has no third phase; one whose norm never turns has no
        second.
        """
        if not self.samples:
            return ()
        onset = self.onset()
        before = [sample for sample in self.samples if onset is None or sample.step <= onset]
        turn = min(before, key=lambda sample: sample.norm).step
        cuts: list[tuple[PhaseName, int, int | None]] = [
            ("fit", self.samples[0].step, turn),
            ("reorganisation", turn, onset),
        ]
        if onset is not None:
            cuts.append(("sparsification", onset, None))
        return tuple(Phase(name=n, start=a, stop=b) for n, a, b in cuts if b is None or b > a)

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, one dictionary per sample."""
        return [asdict(sample) for sample in self.samples]

    def _layer(self, group: Group, parameter: nn.Parameter, multiplier: float) -> LayerSample:
        # In float64, since a million small squares are added.
        weight, strength = whole(parameter).double(), group["strength"] * multiplier
        state = {key: whole(value) for key, value in self._optimizer.state[parameter].items()}
        penalties = layout(group).penalties(state)
        return LayerSample(
            sparsity=int((weight.abs() < self._threshold).sum()) / max(1, weight.numel()),
            norm=float(weight.norm()),
            misalignment=penalties.misalignment,
            strength=strength,
            minimal_penalty=strength * penalties.least,
            excess_penalty=strength * penalties.misalignment,
        )
