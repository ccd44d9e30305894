"""Magnitude pruning of a model that lies in pieces on several processes (`fully_shard`): the masks
of one process, without a whole weight anywhere.

Each process counts its own pieces; half a megabyte of counters is summed for each digit of the
threshold, and of equal weights it is known how many lie on the processes before.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.parameters import Params
from secateurs.base.parametrized import names_of_weights
from secateurs.base.prunable import prunable
from secateurs.base.sharding import add_, gather_before, local, local_mask, whole_mask
from secateurs.errors import ArgumentError, ParameterError
from secateurs.masks import on_device
from secateurs.masks.patterns import Unstructured, pattern_of
from secateurs.masks.pieces import count_each
from secateurs.masks.select import best, choice_of
from secateurs.masks.units import Units
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Round

SCOPES = ("global", "layer", "uniform", "erk")
"""Those that look at sizes alone."""


def cut_pieces(
    model: nn.Module, recipe: Recipe, within: Params, of: str
) -> tuple[dict[str, Tensor], Round]:
    """The whole masks, on every process, and what was kept; every process calls this."""
    parameters = prunable(model, recipe.where, pieces=True)
    _refuse(model, recipe, of, parameters)
    units = PieceUnits(parameters, within)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    choice = choice_of(recipe, shapes, units, scores={}, absolute=True)
    chosen = best(choice)
    kept = sum(units.sums(count_each(chosen)).values())
    asked = choice.demand.keep if choice.counts is None else sum(choice.counts.values())
    total = sum(p.numel() for p in parameters.values())
    masks = {name: whole_mask(mask, parameters[name]) for name, mask in chosen.items()}
    return masks, Round(number=1, asked=asked, kept=kept, total=total)


class PieceUnits(Units[Tensor]):
    """Units are entries; of each parameter, the piece that is here."""

    whole = False

    def __init__(self, parameters: Params, within: Params) -> None:
        mesh, dim = _layout(parameters)
        self.group = mesh.get_group(dim)
        self.weights = {name: local(p) for name, p in parameters.items()}
        self.allowed = {
            n: local_mask(mask.to(parameters[n].device), parameters[n])
            for n, mask in within.items()
        }
        self._check_finite()
        room = {name: p.numel() for name, p in parameters.items()}
        self.room = room | self.sums(count_each(self.allowed))

    def capacity(self, name: str) -> int:
        return self.room[name]

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Tensor]:
        pieces = {name: self.weights[name] for name in names}
        masks = {
            name: torch.zeros(piece.shape, dtype=torch.bool, device=piece.device)
            for name, piece in pieces.items()
        }
        if keep:
            on_device.largest_of_pieces_(
                masks,
                pieces,
                keep,
                within=self.allowed,
                absolute=True,
                add_=partial(add_, group=self.group),
                before=partial(gather_before, group=self.group),
            )
        return masks

    def at_least(self, name: str, keep: int) -> Tensor:
        return self.choose([name], keep)[name]

    def count_kept(self, name: str, chosen: Tensor) -> int:
        return self.sums(count_each({name: chosen}))[name]

    def short(self, chosen: Mapping[str, Tensor], floor: Mapping[str, int]) -> list[str]:
        kept = self.sums(count_each(chosen))
        return [name for name in chosen if kept[name] < floor[name]]

    def sums(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Numbers of all processes together."""
        device = next(iter(self.weights.values())).device
        numbers = torch.tensor([*counts.values()], dtype=torch.int64, device=device)
        if counts:
            add_(numbers, self.group)
        return dict(zip(counts, numbers.tolist(), strict=True))

    def _check_finite(self) -> None:
        # Counted on every process, so that all raise the same.
        found = {name: int((~w.isfinite()).sum()) for name, w in self.weights.items()}
        bad = [f"{name!r} ({count} entries)" for name, count in self.sums(found).items() if count]
        if bad:
            raise ParameterError(
                f"weights are NaN or infinite in {', '.join(bad)}; repair the model before pruning"
                " it."
            )


def _refuse(model: nn.Module, recipe: Recipe, of: str, parameters: Params) -> None:
    """What needs whole weights, or a model that runs here."""
    wanted: dict[str, tuple[Any, bool]] = {
        "score": (recipe.score, recipe.score == "magnitude"),
        "pattern": (recipe.pattern, isinstance(pattern_of(recipe.pattern), Unstructured)),
        "how": (recipe.how, recipe.how == "topk"),
        "scope": (recipe.scope, isinstance(recipe.scope, Mapping) or recipe.scope in SCOPES),
        "rounds": (recipe.rounds, recipe.rounds == 1),
        "of": (of, of == "all"),
    }
    problems = [f"{name}={value!r}" for name, (value, fits) in wanted.items() if not fits]
    problems += [f"computed weight {n!r}" for n in names_of_weights(model, parameters)]
    if problems:
        raise ArgumentError(
            f"{', '.join(problems)} needs whole weights, and these lie in pieces on several"
            " processes (fully_shard), where prune_ takes one round of 'magnitude' with any amount"
            f" and scope {', '.join(SCOPES)}. Prune the model before it is sharded, and give the"
            " masks to hold."
        )


def _layout(parameters: Params) -> tuple[Any, int]:
    """The processes, and along which of their dimensions rows are dealt out."""
    meshes, strange = [], []
    for name, parameter in parameters.items():
        placements = getattr(parameter, "placements", ())
        kinds = [type(placement).__name__ for placement in placements]
        rows = [i for i, kind in enumerate(kinds) if kind == "Shard" and placements[i].dim == 0]
        if len(rows) != 1 or kinds.count("Replicate") != len(kinds) - 1:
            strange.append(f"{name!r} {tuple(placements)}")
        else:
            meshes.append((parameter.device_mesh, rows[0]))  # type: ignore[attr-defined]
    if strange or any(mesh != meshes[0] for mesh in meshes):
        where = ", ".join(strange) or "parameters on several meshes"
        raise ParameterError(
            f"prune_ takes weights of which each process has some rows: {where}. Prune the model"
            " before it is sharded, and give the masks to hold."
        )
    return meshes[0]
