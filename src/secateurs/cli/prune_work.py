"""The work of `secateurs prune`: with the network, by any score, or without, piece by piece."""

import sys
from dataclasses import asdict
from typing import Any

import torch.nn.functional as F

from secateurs.cli.commands import check_outputs, nothing_in
from secateurs.cli.prune_order import Order
from secateurs.errors import ArgumentError
from secateurs.foreign import one_line
from secateurs.masks import SparsityReport, save_masks
from secateurs.prune import Pruned, Recipe, prune_, prune_file
from secateurs.prune.shards import open_stored
from secateurs.random import generator
from secateurs.scores import SCORES
from secateurs.ship.files import is_sparse_file
from secateurs.train import save_model


def carry_out(order: Order, *, quiet: bool) -> Pruned | SparsityReport:
    """Prune the file of an order and write what is left."""
    return with_network(order) if _has_network(order) else without(order, quiet=quiet)


def with_network(order: Order) -> Pruned:
    """Prune the network of a checkpoint by any score."""
    check_outputs([order.out, order.masks_out], inputs=[order.model])
    # The recipe first: what it cannot mean is said before a file is read.
    recipe = Recipe(**order.cut.fields(), **asdict(order.rounds))
    network, notes = order.which.opened(order.model)
    source = generator(order.seed, "prune")
    pruned = prune_(network, recipe, generator=source, **_given(order, notes))
    save_model(network, order.out, notes=notes)
    if order.masks_out is not None:
        save_masks(pruned.masks, order.masks_out)
    return pruned


def without(order: Order, *, quiet: bool) -> SparsityReport:
    """Prune without the network; on a terminal the name of the tensor in work is shown."""
    _refuse_needless(order)
    shown = sys.stderr.isatty() and not quiet
    clear = "\r\x1b[2K"

    def say(name: str) -> None:
        if shown:
            sys.stderr.write(f"{clear}{one_line(name)}")
            sys.stderr.flush()

    try:
        options = {**order.cut.fields(), "seed": order.seed, "progress": say}
        masks = order.masks_out
        return prune_file(order.model, order.out, masks_out=masks, **options).report
    finally:
        if shown:
            # The line is wiped, so that the table starts on a clean one.
            sys.stderr.write(clear)


def _has_network(order: Order) -> bool:
    """Whether the network is known, by --arch or by what the file says of itself."""
    if order.model.is_file() and is_sparse_file(order.model):
        return True
    if order.which.arch is not None:
        return True
    # A pickle is refused here, with the lines that convert it, and so is what is not there.
    return "arch" in open_stored(order.model).notes


def _refuse_needless(order: Order) -> None:
    given = order.needless()
    if given:
        raise ArgumentError(
            f"{order.model} does not say which network it is: add --arch NAME (see `secateurs"
            f" models`), or leave out {', '.join(given)} to prune the file by its weights alone."
        )


def _given(order: Order, notes: dict[str, str]) -> dict[str, Any]:
    """What the score looks at: training examples with cross-entropy, or an example of the right
    shape.
    """
    score = order.cut.score
    known = order.source.loaded()
    if known is not None:
        batch = known.train_x[: order.examples], known.train_y[: order.examples]
        return {"batch": batch, "loss": F.cross_entropy, "example": batch[0][:1]}
    if SCORES[score].needs & {"batch", "loss"}:
        raise ArgumentError(
            f"the score {score!r} looks at data: add --data NAME (see `secateurs data`)."
        )
    return {"example": nothing_in(notes)}
