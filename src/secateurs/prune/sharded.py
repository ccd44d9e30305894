"""Magnitude pruning of a model that lies in pieces on several processes (`fully_shard`, tensor
parallelism, or both): the masks of one process, without a whole weight anywhere.

Each process counts its own pieces; half a megabyte of counters is summed for each digit of the
threshold. Of equal weights at the threshold the processes agree, by counting, up to which place in
the whole tensor they stay.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.parameters import Params, is_sharded
from secateurs.base.parametrized import names_of_weights
from secateurs.base.prunable import prunable
from secateurs.base.sharding import (
    add_,
    local,
    local_mask,
    meshes_of,
    strange_placements,
    whole_mask,
    whole_places,
)
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
        self.parameters = parameters
        self.mesh = _mesh_of(parameters)
        self.counted = {name for name, p in parameters.items() if _counts(p, self.mesh)}
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
                counted=self.counted,
                sizes={name: p.numel() for name, p in self.parameters.items()},
                add_=self.add_,
                places=lambda name, at: whole_places(at, self.parameters[name]),
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
        own = [count if name in self.counted else 0 for name, count in counts.items()]
        numbers = torch.tensor(own, dtype=torch.int64, device=device)
        if counts:
            self.add_(numbers)
        return dict(zip(counts, numbers.tolist(), strict=True))

    def add_(self, values: Tensor) -> None:
        """Add the values of every process, in place."""
        for group in self.mesh.get_all_groups():
            add_(values, group)

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
            " processes (fully_shard, tensor parallelism), where prune_ takes one round of"
            f" 'magnitude' with any amount and scope {', '.join(SCOPES)}. Prune the model before it"
            " is sharded, and give the masks to hold."
        )


def _mesh_of(parameters: Params) -> Any:
    """The processes on which all of them lie: of several, those that the others are a part of."""
    meshes = [mesh for mesh, _ in meshes_of(parameters.values())]
    mesh = max(meshes, key=lambda m: m.ndim)
    strange = [f"{name!r} {why}" for name, p in parameters.items() if (why := _strange(p, mesh))]
    if strange:
        raise ParameterError(
            f"prune_ counts weights piece by piece, and {'; '.join(strange)}. Leave these out by"
            " where=, or prune the model before it is sharded, and give the masks to hold."
        )
    return mesh


def _strange(parameter: Tensor, mesh: Any) -> str:
    """Why its pieces cannot be counted by these processes; empty if they can."""
    if not is_sharded(parameter):
        return "lies whole on every process, which may not be the same one"
    own: Any = parameter.device_mesh  # type: ignore[attr-defined]
    if own != mesh:
        names = own.mesh_dim_names or ()
        if not set(names) or not set(names) < set(mesh.mesh_dim_names or ()) or mesh[names] != own:
            return f"lies on {own}, which is no part of {mesh}"
    return strange_placements(parameter)


def _counts(parameter: Any, mesh: Any) -> bool:
    """Whether this process counts its piece: of those that hold the same one, the first does."""
    own = parameter.device_mesh
    names = own.mesh_dim_names if own != mesh else range(mesh.ndim)
    cut = {
        name
        for name, placement in zip(names, parameter.placements, strict=True)
        if hasattr(placement, "dim")
    }
    every = mesh.mesh_dim_names if own != mesh else range(mesh.ndim)
    return all(name in cut or mesh.get_local_rank(name) == 0 for name in every)
