"""Holding zeros at zero, through the optimizer.

The model is not touched: no module is wrapped, hooked or renamed, so `state_dict`, `deepcopy`,
`torch.compile` and every export see a plain model. Two hooks of the optimizer do the work:

* before a step the gradients of dropped entries are set to zero (and again whenever a closure has
  been evaluated), so that optimizers which mix entries (LBFGS) or norms never see them;
* after it the weights, and every state tensor of the parameter's own shape (momentum, second
  moments, averages).

An optimizer that hands the update to another (`base_optimizer`, as SAM does) is held with that one;
then gradients are cleared as soon as they are there, so that its probe step leaves zeros alone too.
Where an update passes no `step()` at all, a watcher on one parameter says so at the second backward
pass; after the first real step it is gone.

State of other shapes is left alone: scalars such as step counts need no mask, and factored or
preconditioning matrices (Adafactor, Shampoo) have no entry per weight; with those optimizers
weights and gradients are exactly zero all the same.
"""

from torch import nn
from torch.optim import Optimizer

from secateurs.errors import MaskError
from secateurs.optim.holding.held import Held
from secateurs.optim.holding.names import misfits, prefix_of, prefixes, unheld
from secateurs.optim.holding.optimizers import layers, stray_copies
from secateurs.optim.holding.ranks import check_ranks, distributed
from secateurs.parameters import Params, check_model, fitted

__all__ = ["Held", "hold"]


def hold(
    model: nn.Module,
    masks: Params,
    optimizer: Optimizer,
    *,
    same_on_ranks: bool = True,
) -> Held:
    """Keep the dropped entries exactly zero from now on: weights, gradients and optimizer state.

    Args:
        model: The model, plain or in `DistributedDataParallel`, `torch.compile` or `AveragedModel`,
            or sharded by `fully_shard` (then with whole masks, and with the optimizer of the
            sharded parameters). Its dropped weights are set to zero at once.
        masks: Boolean masks by parameter name, True = kept, as from `select`.
        optimizer: The optimizer that trains the masked parameters. A frozen one may be missing; it
            is held as soon as a group with it is added. Wrappers such as accelerate's or a
            Lookahead are seen through, and what they keep for a parameter is cleared, too.
        same_on_ranks: In a distributed run, compare the masks of all ranks (a collective call:
            every rank must hold). False where ranks train different models.

    Returns:
        A `Held`; `release()` it, or use it as a context manager.

    Every step looks whether the model still has the parameters that are held. Those that were
    replaced (`load_state_dict(assign=True)`, `layer.weight = …`) are held in their place, and the
    log says so where the optimizer trains the old ones; a parameter that is gone, or has another
    shape, is a MaskError.

    Copies of the optimizer (`deepcopy`, unpickling) carry no hooks, as always in torch: hold them
    as well. A copy of the model made before the hold, such as an average of its weights, is cleared
    by `held.follow(copy)`.

    >>> import torch
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    >>> held = hold(layer, {"weight": torch.tensor([[True, False]])}, optimizer)
    >>> for _ in range(3):
    ...     layer(torch.ones(4, 2)).sum().backward()
    ...     optimizer.step()
    >>> layer.weight[0, 1].item(), optimizer.state[layer.weight]["momentum_buffer"][0, 1].item()
    (0.0, 0.0)
    >>> held.release()
    """
    check_model(model)
    *wrappers, inner = layers(optimizer)
    known = dict(model.named_parameters(remove_duplicate=False))
    masks = fitted(masks, known, prefixes=prefixes())
    prefix = prefix_of(model, masks)
    names = {name: prefix + name for name in masks}
    # `unheld` looks parameters up by name, so it may only follow where all names are
    # known.
    problems = misfits(names, masks, known) or unheld(names, known, inner)
    if not problems and (
        stray := stray_copies(wrappers, known.values(), masks.values())
    ):
        problems = [
            f"{', '.join(stray)} keeps copies of the weights, and would bring dropped ones back:"
            " hold the optimizer inside first, and make the wrapper around it afterwards"
        ]
    # Called with the problems and before they are raised: a rank that leaves early
    # would let the others wait for ever.
    if same_on_ranks and distributed():
        check_ranks(model, masks, problems, prefix=prefix)
    if problems:
        raise MaskError(
            f"{len(problems)} problem(s), nothing is held: {'; '.join(problems)}."
        )
    return Held(
        {name: known[found] for name, found in names.items()},
        masks,
        inner,
        model,
        wrappers=wrappers,
        compare=same_on_ranks,
    )
