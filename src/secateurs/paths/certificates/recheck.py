"""Proves a kept certificate again, from its text and the two networks alone."""

import math
from typing import Any

from torch import nn

from secateurs.errors import DomainError
from secateurs.paths.certificates.certify import look, prove
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.problem import OWN_UNIT, read_problem
from secateurs.paths.certificates.record import (
    Recheck,
    domain_hash,
    mismatches,
    read_domain,
    read_record,
)


def recheck(
    text: str, dense: nn.Module, sparse: nn.Module, *, domain: Domain | None = None
) -> Recheck:
    """Whether these two networks are the ones of the record, and whether its bound is proved again.

    Args:
        text: what `Certificate.to_json` wrote.
        dense, sparse: the two networks, in eval mode.
        domain: the boxes, where the record holds only their hash.

    >>> import torch, secateurs as sc
    >>> dense, sparse = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> kept = sc.certify(dense, sparse, around=torch.zeros(1, 2), radius=1.0).to_json()
    >>> recheck(kept, dense, sparse).holds, recheck(kept, dense, dense).holds
    (True, False)
    """
    record = read_record(text)
    boxes = read_domain(record["boxes"]) if domain is None else domain
    if domain_hash(boxes) != record["boxes"]["sha256"]:
        raise DomainError(
            "these are not the boxes of the record: their hash does not fit."
        )
    stated = math.inf if record["bound"] is None else float(record["bound"])
    options = record["options"]
    unit = 0.0 if options["rounding"] is False else OWN_UNIT
    problem = read_problem(
        dense, sparse, boxes.example, unit=unit, effort=float(options["effort"])
    )
    problems = mismatches(record, problem)
    bound = math.nan if problems else _proved(problem, boxes, options)
    if not problems and not bound <= stated * (1 + 1e-9):
        problems = [f"the bound proved now is {bound:.6g}, above {stated:.6g}"]
    return Recheck(
        holds=not problems, bound=bound, stated=stated, problems=tuple(problems)
    )


def _proved(problem: Any, boxes: Domain, options: dict[str, Any]) -> float:
    """The bound with the methods of the record; the search is left out."""
    found = look(problem, boxes, restarts=0, steps=0)
    return prove(
        problem,
        boxes,
        found,
        methods=options["methods"],
        norm=float(options["norm"]),
        rounding=options["rounding"],
    ).bound
