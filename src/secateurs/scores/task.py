"""What a score rule is: a function of a `Task`, registered under a name."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.parameters import Params
from secateurs.registry import Registry
from secateurs.scores.batches import Batch, Inputs, batches
from secateurs.scores.calling import with_decoder_inputs

Convention: TypeAlias = Literal["paper", "reference"]
"""Which formula, where the paper and the code published with the method differ (docs/scores.md)."""

Mode: TypeAlias = Literal["keep", "train", "eval"]
"""The mode the model is scored in; "keep" is the mode the user left it in, module by module."""

Need: TypeAlias = Literal["batch", "loss", "example"]
Loss: TypeAlias = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a score rule works on.

    `model` is a private copy and `parameters` its chosen parameters by name, leaves that require a
    gradient; a rule may change both. `batches()` iterates the data anew at each call, `example` is
    one input of the model, and `generator` is where a rule draws its numbers from. (A rule
    registered with `runs=False` sees the user's own model and only reads it.)
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    convention: Convention = "paper"
    data: Any = None
    loss: Loss | None = None
    example: Inputs | None = None
    generator: torch.Generator | None = None

    def batches(self) -> Iterator[Batch]:
        """The data, batch by batch, on the device of the model, with inputs for a decoder made
        from labels where they are lacking.
        """
        for batch in batches(self.data, device=self.device):
            yield with_decoder_inputs(self.model, batch)

    @property
    def device(self) -> torch.device:
        """The device of the first chosen parameter."""
        return next(iter(self.parameters.values())).device


class Finite(dict[str, Tensor]):
    """Scores of a rule that has looked at every entry and found no NaN and no infinity: they are
    not read a second time.
    """


class ScoreFields(TypedDict, total=False):
    """Keywords of `secateurs.score` and of the registered rules, for functions that hand them on.

    A rule of your own may have others: bind those with `functools.partial`.
    """

    batch: Any
    loss: Loss | None
    convention: Convention
    mode: Mode | None
    draws: int | None
    temperature: float | None
    relative: bool


Rule: TypeAlias = Callable[..., Params]
"""`rule(task, **options) -> {parameter name: tensor}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """A score: the rule, what the caller must give, whether it runs the model, and what it does
    once before rounds.
    """

    name: str
    rule: Rule
    needs: frozenset[Need] = frozenset()
    runs: bool = True
    prepare: Callable[[Task], None] | None = None
    description: str = ""


SCORES: Registry[ScoreRule] = Registry("score")
"""Every score by name. Register your own with `@score_rule("name")`."""


def score_rule(
    name: str,
    *,
    needs: Iterable[Need] = (),
    runs: bool = True,
    prepare: Callable[[Task], None] | None = None,
) -> Callable[[Rule], Rule]:
    """Decorator: register `rule(task, **options) -> {name: tensor}` as a score.

    `needs` lists what the caller must give: "batch", "loss", "example" (taken from the batch when
    only that is given). `runs=False` promises that the rule neither runs the model nor writes to
    it: no copy is made. `prepare(task)` changes the copy once before all rounds; the rule then
    promises to leave the values of parameters and buffers alone, and a round costs no fresh copy.

    >>> @score_rule("cube")
    ... def cube(task):
    ...     "|w|³: the same masks as magnitude, steeper draws."
    ...     return {name: p.detach().abs() ** 3 for name, p in task.parameters.items()}
    >>> "cube" in SCORES
    True
    >>> del SCORES._rules["cube"]  # an example leaves nothing behind
    """
    strange = sorted(set(needs) - {"batch", "loss", "example"})
    if strange:
        raise ArgumentError(
            f"score {name!r} needs {strange}; a rule can need 'batch', 'loss' and 'example'."
        )

    def decorate(rule: Rule) -> Rule:
        # The first line of the docstring is what lists of scores print.
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        entry = ScoreRule(
            name=name,
            rule=rule,
            needs=frozenset(needs),
            runs=runs,
            prepare=prepare,
            description=summary,
        )
        SCORES.register(name)(entry)
        return rule

    return decorate
