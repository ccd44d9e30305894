"""How far the answers of two models lie apart on given inputs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import DomainError, StructureMismatch
from secateurs.graph.reading.outputs import outputs_of
from secateurs.graph.untouched import untouched
from secateurs.paths.certificates.samples.answers import first_tensor, predictions
from secateurs.paths.certificates.samples.batches import batches


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode again outside."""
    with ExitStack() as stack:
        # Each module once, and its own flag rather than model.eval(): a batch norm that
        # was frozen in a training model is frozen again afterwards.
        for module in {
            id(m): m for model in models for m in model.modules()
        }.values():
            stack.callback(setattr, module, "training", module.training)
            module.training = False
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The deviations on given inputs: their size per input, the largest per output, and the worst
    input; the names of all outputs, that in question first.
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
        evaluating(dense, sparse),
    ):
        for args, kwargs in batches(data):
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


def _names(result: object, chosen: Tensor) -> tuple[str, ...]:
    found = outputs_of(result)
    return tuple(sorted(found, key=lambda name: found[name] is not chosen))


def _observed(
    one: Tensor, two: Tensor, x: Any, norm: float, outputs: tuple[str, ...]
) -> Observed:
    if one.shape != two.shape:
        raise StructureMismatch(
            f"the models answer with shapes {tuple(one.shape)} and {tuple(two.shape)}."
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
