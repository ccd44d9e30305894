"""`score`, and `Scorer` for rounds: check everything, run a rule on a private copy, check its
result."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.bits import write_masked_
from secateurs.base.copies import private_copy
from secateurs.base.parameters import Params, all_finite, refuse_wrapped
from secateurs.base.parametrized import acting_weights, bake_, names_of_weights
from secateurs.base.prunable import Where, prunable
from secateurs.base.random import check_generator
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, ParameterError, ScoreError
from secateurs.masks.apply import mask_misfits
from secateurs.masks.pieces import sound
from secateurs.scores.cut import first_mask, recut_
from secateurs.scores.task import (
    SCORES,
    Convention,
    Finite,
    Inputs,
    Loss,
    Mode,
    Rule,
    ScoreRule,
    Task,
    losses,
    wide_dtype,
)


def score(
    model: nn.Module,
    rule: str | Rule,
    *,
    where: Where = None,
    batch: Any = None,
    loss: Loss | None = None,
    output: Callable[[Any], Any] | None = None,
    example: Inputs | None = None,
    generator: torch.Generator | None = None,
    convention: Convention = "paper",
    **options: Any,
) -> dict[str, Tensor]:
    """How important is each weight: `{parameter name: tensor of its shape}`, large = keep.

    `rule` is a registered name (`SCORES.names()`) or your own `rule(task, **options) -> {name:
    tensor}`. `batch` is `(x, y)`, inputs alone, a list of batches or a loader; `loss(output, y)`
    must average over its batch; the output is the model's own if that is one tensor, else its
    `logits` or its first tensor, or what the function `output` makes of it. `example` is one input
    of the model: a tensor, a tuple of positional or a dict of keyword arguments. What a rule does
    not need is ignored. `convention` picks the paper's formula or the reference code's where they
    differ (docs/scores.md). Without a `generator`, draws follow torch's global state and, like
    everything else, leave it as it was: two calls then draw the same numbers. Frozen parameters are
    scored like any other, tied ones once. Where `weight_norm`, `spectral_norm` or another
    parametrisation computes the weight, that weight is scored, under the name of the parameter
    behind it. The model is bit-equal afterwards; the scores carry no graph.

    >>> net = nn.Linear(2, 2)
    >>> bool((score(net, "magnitude")["weight"] == net.weight.abs()).all())
    True
    """
    return Scorer(
        model,
        rule,
        where=where,
        batch=batch,
        loss=loss,
        output=output,
        example=example,
        generator=generator,
        convention=convention,
        **options,
    ).scores()


class Scorer:
    """A score prepared once and computed in every round of pruning: `scorer.scores(masks)`;
    arguments as for `score`.

    The model must stay as it is from round to round: the masks say what has been cut. Draws
    continue the generator's stream from round to round.

    >>> scorer = Scorer(nn.Linear(4, 3), "synflow", example=torch.zeros(1, 4))
    >>> mask = torch.rand(3, 4) > 0.5
    >>> bool((scorer.scores({"weight": mask})["weight"][~mask] == 0).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        rule: str | Rule,
        *,
        where: Where = None,
        batch: Any = None,
        loss: Loss | None = None,
        output: Callable[[Any], Any] | None = None,
        example: Inputs | None = None,
        generator: torch.Generator | None = None,
        convention: Convention = "paper",
        **options: Any,
    ) -> None:
        check_convention(convention)
        check_generator(generator)
        check_loss(loss)
        check_output(output)
        refuse_wrapped(model)
        # Everything that can be wrong is found here, once, so that rounds only compute.
        self._entry = SCORES[rule] if isinstance(rule, str) else own_rule(rule)
        self._options = check_options(self._entry, options)
        self._model, self._generator = model, generator
        self._sources = prunable(model, where)
        # Weights that a parametrisation computes stand in for the parameters behind them.
        self._names = names_of_weights(model, self._sources)
        check_weights(acting_weights(model, self._sources))
        given = Task(
            model=model,
            parameters=dict(self._sources),
            convention=convention,
            data=make_rereadable(batch),
            loss=loss,
            output=output,
            example=example,
            generator=generator,
        )
        self._task = complete(self._entry, given)
        self._copy: Copy | None = None

    def scores(self, masks: Params | None = None, *, keep: int | None = None) -> dict[str, Tensor]:
        """The scores of the model, or of the model with the masks applied: what they cut counts as
        zero. `keep` is how many entries are to stay, for scores that depend on it.
        """
        with self._running(masks or {}) as task:
            result = self._entry.rule(replace(task, keep=keep), **self._options)
            known = {self._names.get(name, name): p for name, p in self._sources.items()}
            scores = in_model_order(result, known, self._entry.name)
        if not isinstance(result, Finite):
            check_scores(scores, self._entry.name)
        return dict(zip(self._sources, scores.values(), strict=True))

    def gradients(self, masks: Params) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Of a score that is |weight ⊙ gradient|: the gradients, and the weights of the private
        copy, which the caller may cut if it then calls `was_cut`. None for other scores.
        """
        if self._entry.gradients is None or self._names:
            return None
        with self._running(masks) as task:
            gradients = self._entry.gradients(task, **self._options)
        if gradients is None:
            return None
        return gradients, {name: p.detach() for name, p in task.parameters.items()}

    def was_cut(self, masks: Params) -> None:
        """The weights that `gradients` gave are cut by these masks now."""
        if self._copy is not None:
            self._copy.was_cut(masks)

    def restore(self, masks: Params) -> None:
        """Cut the weights that `gradients` gave by these masks, whatever was written to them."""
        if self._copy is not None:
            self._copy.restore(masks)

    @contextmanager
    def _running(self, masks: Params) -> Iterator[Task]:
        """What a rule is given, and the state that it runs in."""
        # Before the model runs: a misfit found later would have cost a pass over the data.
        if problems := mask_misfits(masks, self._sources, "scored parameter"):
            raise ScoreError(f"{'; '.join(problems)}.")
        with (
            # Users often score inside no_grad or inference_mode; gradients are needed nevertheless.
            torch.inference_mode(False),
            torch.enable_grad(),
            seeded(self._model, self._generator),
        ):
            yield self._masked(masks)

    def _masked(self, masks: Params) -> Task:
        if not self._entry.runs:
            # A rule that only reads needs no copy of the model, just of what was cut.
            masked: dict[str, nn.Parameter] = {
                n: nn.Parameter(p.detach() * masks[n]) if n in masks else p
                for n, p in self._sources.items()
            }
            weights = acting_weights(self._model, {n: masked[n] for n in self._names})
            return replace(
                self._task,
                parameters={
                    self._names.get(n, n): nn.Parameter(weights[n]) if n in weights else p
                    for n, p in masked.items()
                },
            )
        # A rule that prepares its copy (weights by their magnitude, say) does so once
        # for all rounds; but a mask changes all of a norm's weights, so those are computed anew.
        once = self._entry.prepare is not None and not self._names
        copy = self._copy or self._fresh(masks)
        # Without preparation each round starts from a fresh copy: its rule may write into it.
        self._copy = copy if once else None
        if not self._names:
            copy.cut(masks)
        return replace(self._task, model=copy.model, parameters=copy.parameters)

    def _fresh(self, masks: Params) -> "Copy":
        copy = Copy(self._model, self._sources)
        if self._names:
            copy.cut(masks)
            copy.bake(self._names)
        if self._entry.prepare:
            self._entry.prepare(replace(self._task, model=copy.model, parameters=copy.parameters))
            copy.keep()
        return copy


# What a score needs against what the caller gave: combined, or refused in one error.


def own_rule(rule: Rule) -> ScoreRule:
    """A rule of the user's own, under the name of its function."""
    if not callable(rule):
        raise ArgumentError(
            f"a score is a name or a callable rule(task), not {rule!r}; names: {SCORES.names()}."
        )
    return ScoreRule(name=getattr(rule, "__name__", type(rule).__name__), rule=rule)


def make_rereadable(batch: Any) -> Any:
    """An iterator can be read once: keep what it gives."""
    return list(batch) if isinstance(batch, Iterator) else batch


def complete(entry: ScoreRule, task: Task) -> Task:
    """The task with its example; everything that the rule needs and was not given, in one error."""
    if task.example is None and task.data is not None and "example" in entry.needs:
        # A loader may draw: looking at its first batch leaves the global generators as they were.
        with torch.inference_mode(False), seeded(task.model, None):
            task = replace(task, example=next((batch.first() for batch in task.batches()), None))
    have = {"batch": task.data, "loss": task.loss, "example": task.example}
    missing = [
        f"{need}={_HOW[need]}"
        for need in ("batch", "loss", "example")
        if need in entry.needs
        and have[need] is None
        and not (need == "loss" and _has_labels(task.data))
    ]
    if missing:
        raise ArgumentError(f"score {entry.name!r} needs {' and '.join(missing)}.")
    return task


def _has_labels(data: Any) -> bool:
    """Whether batches are dicts with labels, so that a model may compute its own loss."""
    # Only looked at, never read: a loader would lose its first batch.
    first = data[0] if isinstance(data, list) and data else data
    if isinstance(first, Mapping):
        return first.get("labels") is not None
    # A loader shows it only when it runs.
    return not isinstance(first, Tensor | tuple | list | type(None))


_HOW = {
    "batch": "(x, y), a list of batches or a loader (data-free: secateurs.scores.probe)",
    "loss": (
        "a function loss(output, y) that averages over the batch, such as"
        " torch.nn.functional.cross_entropy"
    ),
    "example": "one input of the model (a tensor, a tuple or a dict), or batch=",
}


# Checks of a score: model, options and masks beforehand, its own result afterwards.


def check_convention(convention: object) -> None:
    """Refuse an unknown convention."""
    if convention not in ("paper", "reference"):
        raise ArgumentError(f"convention={convention!r}; it is 'paper' or 'reference'.")


def check_loss(loss: object) -> None:
    """Refuse a name or a class in place of a function: called with outputs, it would fail
    obscurely."""
    if loss is None or (callable(loss) and not isinstance(loss, type)):
        return
    if isinstance(loss, type):
        raise ArgumentError(f"loss is the class {loss.__name__}: call it, {loss.__name__}().")
    raise ArgumentError(
        f"loss={loss!r} is a {type(loss).__name__}: give a function loss(output, y) that averages"
        " over the batch, such as torch.nn.functional.cross_entropy."
    )


def check_output(output: object) -> None:
    """Refuse what is not a function of the model's output."""
    if output is not None and not callable(output):
        raise ArgumentError(
            f"output={output!r} is a {type(output).__name__}: give a function of what the model"
            " returns, such as lambda whole: whole[1], whose result the loss is given."
        )


def check_options(entry: ScoreRule, options: dict[str, Any]) -> dict[str, Any]:
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


def check_weights(sources: Mapping[str, Tensor]) -> None:
    """A weight that is NaN would make every score NaN, and the message would blame the score."""
    if bad := _not_finite(sources):
        raise ParameterError(
            f"weights are NaN or infinite in {bad}; repair the model before scoring it."
        )


def in_model_order(result: Params, sources: Mapping[str, Tensor], rule: str) -> dict[str, Tensor]:
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
    problems += [f"{name!r} was not asked for" for name in result if name not in sources]
    problems += [
        f"the score of {name!r} has shape {tuple(result[name].shape)}, the parameter"
        f" {tuple(source.shape)}"
        for name, source in sources.items()
        if isinstance(result.get(name), Tensor) and result[name].shape != source.shape
    ]
    if problems:
        raise ScoreError(f"score {rule!r} does not fit the model: {'; '.join(problems)}.")
    return {name: result[name].detach() for name in sources}


def check_scores(scores: Mapping[str, Tensor], rule: str) -> None:
    """Scores that cannot be ranked are refused here, where the name of the rule is known."""
    if bad := _not_finite(scores):
        raise ScoreError(
            f"score {rule!r} is NaN or infinite in {bad}; look at the inputs, at the loss and at"
            " the parameters that are not scored, or score a float64 copy of the model."
        )


def _not_finite(tensors: Mapping[str, Tensor]) -> str:
    """The tensors that hold NaN or infinite entries, and how many; empty where all are finite."""
    fine = sound(tensors)
    counts = {
        name: f"{int((~tensor.detach().isfinite()).sum())} of {tensor.numel()} entries"
        for name, tensor in tensors.items()
        if name not in fine and not all_finite(tensor)
    }
    return ", ".join(f"{name!r} ({count})" for name, count in counts.items())


# A private copy of a model, and random number generators that are put back.


@contextmanager
def seeded(model: nn.Module, generator: torch.Generator | None) -> Iterator[None]:
    """Put the global generators back afterwards; inside, what a model draws (dropout) follows the
    generator.
    """
    devices = sorted(
        # Only devices the model lives on: touching others would start them.
        {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    )
    with torch.random.fork_rng(devices=devices):
        if generator is not None:
            seed = int(
                # A seed drawn from the user's generator: rounds differ, and the whole
                # run can be repeated.
                torch.randint(2**62, (), generator=generator, device=generator.device)
            )
            torch.default_generator.manual_seed(seed)
            for index in devices:
                torch.cuda.default_generators[index].manual_seed(seed)
        yield


class Copy:
    """A deep copy without gradients: the chosen parameters require a gradient, the others do not.

    A copy, not aliases of the same storage, because a module may write to its weights as it runs
    (an embedding with `max_norm` does). It costs the memory of the weights once, and once more
    where rounds share one copy.
    """

    def __init__(self, model: nn.Module, chosen: Iterable[str]) -> None:
        self.model = private_copy(model, error=ScoreError)
        known = dict(self.model.named_parameters(remove_duplicate=False))
        self.parameters = {name: known[name] for name in chosen}
        # First all off, then the chosen on: a frozen parameter that was chosen is scored as well.
        for parameter in known.values():
            parameter.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self._whole: dict[str, Tensor] = {}
        # The masks that large parameters are cut by now.
        self._last: dict[str, Tensor] = {}
        # Masks by which somebody else has already cut all parameters.
        self._done: Params | None = None

    def keep(self) -> None:
        """Remember the chosen parameters as they are now, for `cut` to start from."""
        self._whole = {
            name: parameter.detach().clone() for name, parameter in self.parameters.items()
        }
        self._last = {
            name: last
            for name, parameter in self.parameters.items()
            if (last := first_mask(parameter.detach(), self._whole[name])) is not None
        }

    def bake(self, names: Mapping[str, str]) -> None:
        """Make plain weights of those that a parametrisation computes: parameters of that name."""
        made = bake_(self.model, names)
        self.parameters = {
            names.get(name, name): made.get(name, parameter)
            for name, parameter in self.parameters.items()
        }

    def cut(self, masks: Params) -> None:
        """Set the entries masked out to zero, all others to what was kept."""
        if self._done is not None and self._done is masks:
            return
        if self._done is not None:
            self.restore(masks)
            return
        for name, parameter in self.parameters.items():
            target = parameter.detach()
            whole, last = self._whole.get(name, target), self._last.get(name)
            if name not in masks:
                target.copy_(whole)
                if last is not None:
                    last.fill_(True)
            elif last is not None:
                recut_(target, whole, masks[name], last)
            else:
                write_masked_(target, whole, masks[name])

    def restore(self, masks: Params) -> None:
        """`cut`, where somebody else has written to the parameters."""
        self._done, self._last = None, {}
        self.cut(masks)

    def was_cut(self, masks: Params) -> None:
        """The parameters are cut by these masks: `cut` has nothing to do when it is given them."""
        self._done = masks


# The gradient of the loss over all the data: what SNIP, GraSP and Taylor share.


def set_mode(task: Task, mode: Mode | None, *, default: Mode) -> None:
    """Put the copy into the mode asked for; "keep" leaves each module in the user's mode."""
    mode = mode or default
    if mode not in ("keep", "train", "eval"):
        raise ArgumentError(f"mode is {mode!r}; it is 'keep', 'train' or 'eval'.")
    if mode != "keep":
        # A private copy: the user's modes are not touched.
        task.model.train(mode == "train")


def mean_gradient(task: Task, *, temperature: float = 1.0) -> list[Tensor]:
    """∂L/∂w of the mean loss over all examples: batches count by their size."""
    parameters = list(task.parameters.values())
    total = [torch.zeros_like(p, dtype=wide_dtype(p)) for p in parameters]
    examples = 0
    for size, loss in losses(task, temperature=temperature):
        examples += size
        for sum_, gradient in zip(total, gradient_of(loss, parameters), strict=True):
            # Weighted by size, or a short last batch would count too much.
            sum_.add_(gradient, alpha=size)
    return [sum_.div_(examples) for sum_ in total]


def gradient_of(
    value: Tensor,
    parameters: Sequence[nn.Parameter],
    *,
    create_graph: bool = False,
    keep_graph: bool = False,
) -> list[Tensor]:
    """The gradient, zero for a parameter the value does not depend on."""
    if not value.requires_grad:
        raise ScoreError(
            "the outputs or the loss do not depend on any chosen parameter through differentiable"
            " operations."
        )
    keep_graph = keep_graph or create_graph
    found = torch.autograd.grad(
        value,
        parameters,
        create_graph=create_graph,
        retain_graph=keep_graph,
        allow_unused=True,
    )
    return [
        # An unused parameter has the gradient zero, not None.
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, found, strict=True)
    ]


def separate_copies(gradients: Iterable[Tensor]) -> list[Tensor]:
    """The gradients, each in memory of its own, so that it may be written to.

    The terms of a sum are given one and the same gradient, and that of `sum()` is one number for
    all entries.
    """
    seen: set[int] = set()
    apart = []
    for gradient in gradients:
        address = gradient.untyped_storage().data_ptr()
        repeated = 0 in gradient.stride() or address in seen
        seen.add(address)
        apart.append(gradient.clone() if repeated else gradient)
    return apart


def normalise(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores divided by |their sum|, as the reference codes of SNIP and GraSP do (1e-10 added as
    GraSP does).
    """
    # In float64: a sum over millions of float32 scores drifts.
    total = abs(sum(float(s.sum(dtype=torch.float64)) for s in scores.values()))
    return {name: s / (total + 1e-10) for name, s in scores.items()}
