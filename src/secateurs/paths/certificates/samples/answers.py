"""What a module's answer is about: the tensor to compare, and the classes it predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.graph.reading.outputs import outputs_of


def first_tensor(result: Any) -> Tensor:
    """The tensor a module's result is about: itself, its logits, or the first tensor in it."""
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
