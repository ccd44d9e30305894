"""`compact`: a sparse model without its dead channels, as a module of the same class with smaller
tensors."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from secateurs.channels.account import Compaction, ReadModel, account, applied, idle, read_model
from secateurs.channels.folding import folded
from secateurs.channels.labels import AllOutputs
from secateurs.channels.positions import Options, narrowed_state
from secateurs.channels.removal import Removal, removal
from secateurs.channels.verify import (
    difference,
    difference_in_a_batch,
    difference_in_every_mode,
    failing_module,
)
from secateurs.errors import ArgumentError, ShipError
from secateurs.graph import Example
from secateurs.graph.export import check_parameters
from secateurs.graph.replay import COMPARED
from secateurs.graph.untouched import keeping
from secateurs.parameters import Params, refuse_wrapped

Progress = Callable[[str], None]

_ROUNDING = 1e-3


def compact(
    model: nn.Module,
    example: Example,
    *,
    masks: Params | None = None,
    multiple_of: int = 1,
    tolerance: float = 1e-9,
    progress: Progress | None = None,
) -> nn.Module:
    """The model without its dead channels and neurons: the same class, smaller tensors, the same
    outputs.

    A channel is dead when no input reaches it or no output uses it, by the zeros of the weights.
    What dead channels emit (a bias behind zero weights) moves into the layers that read it,
    exactly, at every pixel and resolution. The outputs of both models are compared in float64 on
    every call. The account is at `.compaction` of the result: print it.

    Args:
        model: any module that `secateurs.capture` reads, in evaluation mode; it is left as it is.
        example: an input of the right shape; its values do not matter.
        masks: masks by parameter name that are not applied yet.
        multiple_of: round the channels of every layer up to a multiple, which suits some
        processors.
        tolerance: the largest relative difference of outputs accepted in float64.
        progress: called with one line for each step.

    Raises:
        UnsupportedOperation: the graph does not cover an operator; it is named.
        ShipError: the model's code counts on sizes that the graph does not show, so that the
        smaller one differs.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> _ = model[0].weight.data[1].zero_()
    >>> small = compact(model, torch.zeros(1, 3))
    >>> small[0].weight.shape, small.compaction.parameters
    (torch.Size([3, 3]), (26, 20))
    """
    result = compaction(
        model,
        example,
        masks=masks,
        multiple_of=multiple_of,
        tolerance=tolerance,
        progress=progress,
    )
    small = result.model
    small.compaction = result  # type: ignore[assignment]
    return small


@torch.inference_mode(False)  # following use backwards takes a gradient
@torch.no_grad()
def compaction(
    model: nn.Module,
    example: Example,
    *,
    masks: Params | None = None,
    multiple_of: int = 1,
    tolerance: float = 1e-9,
    progress: Progress | None = None,
) -> Compaction:
    """What `compact` does, as the account with the smaller model in it."""
    if multiple_of < 1:
        raise ArgumentError(f"multiple_of={multiple_of!r} is below 1; 1 rounds nothing.")
    refuse_wrapped(model)
    check_parameters(model)
    # Copies run below; what they share with the model, such as a class or a closure, is kept.
    with keeping(model) as held:
        say = progress or _silent
        return _compaction(model, held, example, masks or {}, multiple_of, tolerance, say)


def _silent(text: str) -> None:
    """No progress is shown."""


def _compaction(
    model: nn.Module,
    held: str,
    example: Example,
    masks: Params,
    multiple_of: int,
    tolerance: float,
    say: Progress,
) -> Compaction:
    say("reading the model")
    read = read_model(model, example, masks)
    options: Options | None = Options(multiple_of=multiple_of, hopeful=True)
    while options is not None:
        say("choosing the channels that go")
        choice = removal(read.exact, read.found, read.known, read.state, options)
        say("cutting them out")
        small = _cut(read, choice)
        say("comparing the outputs in float64")
        tried = applied(read.exact, read, choice, small)
        try:
            apart = difference(read.exact.inner, tried.inner, example)
        # The smaller model does not even run: its code counts on the old sizes.
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            apart = float("inf")
        if apart <= tolerance:
            # Asked once of a model and a cut: weights do not choose what gradients change.
            cut = f"cut {held} {[(name, tuple(value.shape)) for name, value in small.items()]}"
            known = COMPARED.is_done(model, cut)
            done = account(
                read,
                choice,
                small,
                example,
                apart=apart,
                tolerance=tolerance,
                differ=difference_in_a_batch if known else difference_in_every_mode,
            )
            # Rounding alone is far below: else float64 decides for batches as well.
            if not done.rounding <= _ROUNDING:
                apart = difference_in_a_batch(read.exact.inner, tried.inner, example)
            if apart <= tolerance:
                done = _rounded_alike(done, model)
                COMPARED.note(model, cut)
                say("done")
                return done
        options = _more_careful(options, tried, example)
    raise ShipError(
        f"the compacted {type(model).__name__} would differ from the model by {apart:.1e}: its "
        "code relies on sizes that are not in its operators"
        + (f", or on the batch: {read.graph.alone}" if read.graph.alone else "")
        + ". Nothing was changed; write the sizes in terms of the tensors' own shapes."
    )


@torch.inference_mode(False)
@torch.no_grad()
def idle_blocks(model: nn.Module, example: Example) -> tuple[str, ...]:
    """Branches that add only a constant and layers that carry nothing, as the weights are now."""
    return idle(read_model(model, example, {}))


def _rounded_alike(done: Compaction, model: nn.Module) -> Compaction:
    """Refuse a model whose code does something else in its own precision than in float64."""
    floating = [p.dtype for p in model.parameters() if p.is_floating_point()]
    epsilons = [torch.finfo(dtype).eps for dtype in floating]
    allowed = min(0.5, 2000 * max(epsilons, default=0.0))
    if done.rounding <= max(allowed, done.tolerance):
        return done
    raise ShipError(
        f"{type(model).__name__} and its compacted form are equal in float64 and differ by"
        f" {done.rounding:.1e} in the model's own precision: its code depends on the precision it"
        " runs in, or on whether gradients are recorded. Nothing was changed; let forward do the"
        " same in all of these."
    )


def _more_careful(options: Options, tried: AllOutputs, example: Example) -> Options | None:
    """What to try after a failure, from hope to caution; None after the last one.

    First the class of modules whose code failed gets all attributes that could be meant, then it
    keeps its sizes, then every reshape that asks for
    the old sizes, at last everything that passes through a reshape at all.
    """
    if options.hopeful:
        failing = failing_module(tried.inner, example)
        if failing is not None:
            kind = type(tried.inner.get_submodule(failing)).__name__
            if kind not in options.contested:
                return replace(options, contested=options.contested | {kind})
            if kind not in options.failed:
                return replace(options, failed=options.failed | {kind})
        return replace(options, hopeful=False)
    return replace(options, rearranged=False) if options.rearranged else None


def _cut(read: ReadModel, choice: Removal) -> dict[str, Tensor]:
    """The tensors that change, in float64."""
    changed = folded(read.state, choice.folds)
    for name, labels in choice.folds.fresh.items():
        # A new bias is narrowed with its layer, like
        # the tensors that were there before.
        read.found.dims[name, 0] = labels
    # Folds count channels at full width, so they come before the narrowing.
    small = narrowed_state(read.found, choice.gone, {**read.state, **changed})
    names = {name for name, _ in read.found.dims} | set(changed)
    # In the model's order: that of a set changes from one process to the next.
    return {
        name: tensor
        for name, tensor in small.items()
        if name in names and (name in changed or tensor.shape != read.state[name].shape)
    }
