"""What a score is refused for: models, options and masks beforehand, its own result afterwards."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from secateurs.errors import ArgumentError, ParameterError, ScoreError
from secateurs.misfits import all_finite, mask_misfit
from secateurs.parameters import Params
from secateurs.registry import unknown
from secateurs.scores.task import ScoreRule


def checked_options(entry: ScoreRule, options: dict[str, Any]) -> dict[str, Any]:
    """Options the rule does not have are most likely typos: refused with the nearest names."""
    # The first parameter is the task; what follows are the options of the rule.
    parameters = list(signature(entry.rule).parameters.values())[1:]
    # A rule with **options checks its own.
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        return options
    known = [p.name for p in parameters]
    misses = [
        unknown(f"option of score {entry.name!r}", name, known or ["none"])
        for name in options
        if name not in known
    ]
    if misses:
        raise ArgumentError(" ".join(misses))
    return options


def fitting_masks(masks: Params, sources: Mapping[str, Tensor]) -> Params:
    """Masks of a round must be of scored parameters and have their shapes."""
    problems = [
        unknown("scored parameter", name, list(sources)[:12])
        for name in masks
        if name not in sources
    ]
    problems += [
        f"{name!r} {text}."
        for name, mask in masks.items()
        if name in sources and (text := mask_misfit(mask, sources[name].shape))
    ]
    if problems:
        raise ScoreError(" ".join(problems))
    return masks


def check_weights(sources: Mapping[str, Tensor]) -> None:
    """A weight that is NaN would make every score NaN, and the message would blame the score."""
    bad = [
        f"{name!r} ({_count(tensor)})"
        for name, tensor in sources.items()
        if not all_finite(tensor)
    ]
    if bad:
        raise ParameterError(
            f"weights are NaN or infinite in {', '.join(bad)}; repair the model before scoring it."
        )


def check_scores(scores: Mapping[str, Tensor], rule: str) -> None:
    """Scores that cannot be ranked are refused here, where the rule is known by name."""
    bad = [
        f"{name!r} ({_count(tensor)})"
        for name, tensor in scores.items()
        if not all_finite(tensor)
    ]
    if bad:
        raise ScoreError(
            f"score {rule!r} is NaN or infinite in {', '.join(bad)}; look at the inputs, at the"
            " loss and at the parameters that are not scored, or score a float64 copy of the"
            " model."
        )


def _count(tensor: Tensor) -> str:
    return f"{int((~tensor.detach().isfinite()).sum())} of {tensor.numel()} entries"


def ordered(
    result: Params, sources: Mapping[str, Tensor], rule: str
) -> dict[str, Tensor]:
    """The scores in the model's order: one tensor of the right shape for each chosen parameter."""
    if not isinstance(result, Mapping):
        raise ScoreError(
            f"score {rule!r} returned a {type(result).__name__}; it returns {{parameter name:"
            " tensor}."
        )
    problems = [f"{name!r} has no score" for name in sources if name not in result]
    problems += [
        f"the score of {name!r} is a {type(s).__name__}"
        for name, s in result.items()
        if not isinstance(s, Tensor)
    ]
    problems += [
        f"{name!r} was not asked for" for name in result if name not in sources
    ]
    problems += [
        f"the score of {name!r} has shape {tuple(result[name].shape)}, the parameter"
        f" {tuple(source.shape)}"
        for name, source in sources.items()
        if isinstance(result.get(name), Tensor) and result[name].shape != source.shape
    ]
    if problems:
        raise ScoreError(
            f"score {rule!r} does not fit the model: {'; '.join(problems)}."
        )
    return {name: result[name].detach() for name in sources}


def check_loss(loss: object) -> None:
    """A name or a class is no function: called with outputs it would fail in words of its own."""
    if loss is None or (callable(loss) and not isinstance(loss, type)):
        return
    if isinstance(loss, type):
        raise ArgumentError(
            f"loss is the class {loss.__name__}: call it, {loss.__name__}()."
        )
    raise ArgumentError(
        f"loss={loss!r} is a {type(loss).__name__}: give a function loss(output, y) that averages"
        " over the batch, such as torch.nn.functional.cross_entropy."
    )
