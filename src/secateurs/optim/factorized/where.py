"""Which parameters of an optimizer are factorized: by name or predicate; the others become groups
of depth None.
"""

from typing import Any, TypeAlias

from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.parameters import Pick, pick

Groups: TypeAlias = list[dict[str, Any]]
Named: TypeAlias = list[tuple[str, nn.Parameter]]


def split(params: Any, where: Pick) -> Any:
    """The parameters as groups in which what `where` does not choose has `depth=None`; as given
    where it is None.

    >>> layer = nn.Linear(2, 2)
    >>> groups = split(layer.named_parameters(), "*weight")
    >>> [[name for name, _ in group["params"]] for group in groups]
    [['weight'], ['bias']]
    """
    if where is None:
        return params
    groups = _groups(params)
    chosen = pick(
        {name: parameter for group in groups for name, parameter in group["params"]},
        where,
    )
    parts = [part for group in groups for part in _parts(group, chosen)]
    # A group of nothing would only add a rate to every scheduler.
    return [part for part in parts if part["params"]]


def _parts(group: dict[str, Any], chosen: set[str]) -> Groups:
    named: Named = group["params"]
    inside = {**group, "params": [(name, p) for name, p in named if name in chosen]}
    return [
        inside,
        {
            **group,
            "params": [(name, p) for name, p in named if name not in chosen],
            "depth": None,
        },
    ]


def _groups(params: Any) -> Groups:
    given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    groups: Groups = (
        given if given and isinstance(given[0], dict) else [{"params": given}]
    )
    return [{**group, "params": _named(group["params"])} for group in groups]


def _named(params: Any) -> Named:
    entries: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    if not all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        for entry in entries
    ):
        raise ArgumentError(
            "where= chooses by name: give the optimizer model.named_parameters(), in groups too."
        )
    return entries
