"""What a score needs and what the caller gave: brought together, or refused in one error."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.scores.copies import seeded
from secateurs.scores.task import SCORES, Rule, ScoreRule, Task


def unregistered(rule: Rule) -> ScoreRule:
    """A rule of the user's own, under the name of its function."""
    if not callable(rule):
        raise ArgumentError(
            f"a score is a name or a callable rule(task), not {rule!r}; names: {SCORES.names()}."
        )
    return ScoreRule(name=getattr(rule, "__name__", type(rule).__name__), rule=rule)


def complete(entry: ScoreRule, task: Task) -> Task:
    """The task with its example; everything the rule needs and does not get, in one error."""
    if task.example is None and task.data is not None and "example" in entry.needs:
        # A loader may draw: looking at its first batch leaves the global generators as
        # they were.
        with torch.inference_mode(False), seeded(task.model, None):
            task = replace(
                task, example=next((batch.first() for batch in task.batches()), None)
            )
    have = {"batch": task.data, "loss": task.loss, "example": task.example}
    missing = [
        f"{need}={_HOW[need]}"
        for need in ("batch", "loss", "example")
        if need in entry.needs
        and have[need] is None
        and not (need == "loss" and _labelled(task.data))
    ]
    if missing:
        raise ArgumentError(f"score {entry.name!r} needs {' and '.join(missing)}.")
    return task


def _labelled(data: Any) -> bool:
    """Whether batches are dicts with labels, so that a model may compute its own loss."""
    # Only looked at, never read: a loader would lose its first batch.
    first = data[0] if isinstance(data, list) and data else data
    if isinstance(first, Mapping):
        return first.get("labels") is not None
    # A loader tells when it runs.
    return not isinstance(first, Tensor | tuple | list | type(None))


_HOW = {
    "batch": "(x, y), a list of batches or a loader (data-free: secateurs.scores.probe)",
    "loss": (
        "a function loss(output, y) that averages over the batch, such as"
        " torch.nn.functional.cross_entropy"
    ),
    "example": "one input of the model (a tensor, a tuple or a dict), or batch=",
}


def reusable(batch: Any) -> Any:
    """An iterator can be read once: keep what it gives."""
    return list(batch) if isinstance(batch, Iterator) else batch
