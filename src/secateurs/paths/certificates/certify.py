"""Certificates: how far a changed network can depart from the dense one, for every input of a
domain.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError, UnknownNameError
from secateurs.paths.certificates.certificate import Certificate
from secateurs.paths.certificates.domain import Domain, ball_domain, box_domain
from secateurs.paths.certificates.keeping.record import states_of
from secateurs.paths.certificates.methods import METHODS, automatic
from secateurs.paths.certificates.problem import OWN_UNIT, Problem, read_problem
from secateurs.paths.certificates.problems.assumptions import (
    Rounding,
    of_one_output,
    rounding_casts,
)
from secateurs.paths.certificates.problems.clock import Clock
from secateurs.paths.certificates.prove import look, prove
from secateurs.paths.certificates.samples.answers import named_output
from secateurs.paths.certificates.samples.batches import inputs_of
from secateurs.paths.certificates.samples.observed import observe
from secateurs.paths.certificates.settings import Options, settings
from secateurs.paths.certificates.statistical import statistical
from secateurs.registry import unknown


@torch.inference_mode(False)  # planes and the search for a lower bound take gradients
def certify(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    box: Any = None,
    around: Tensor | None = None,
    radius: float | None = None,
    data: Any = None,
    clip: tuple[float, float] | None = None,
    example: Tensor | None = None,
    methods: str | Sequence[str] = "auto",
    norm: float = math.inf,
    rounding: Rounding = "auto",
    **options: Unpack[Options],
) -> Certificate:
    """Bound ‖f(x) − g(x)‖ for every x of a domain, f the dense and g the changed network.

    Args:
        dense, sparse: two models of one structure (anything `capture` reads), in eval mode.
        box: (lo, hi), tensors with the batch dimension of the input, or numbers together with
            `example`.
        around, radius, clip: ℓ∞-balls around the inputs of a batch, cut to a valid range such as
            (0, 1).
        data: held-out inputs (tensor, (inputs, labels), or batches). With `radius` the domain is a
            ball around each; alone it is these inputs themselves and the statistical certificate
            says what follows for fresh ones.
        methods: "auto" (the minimum over all, per box and output), one name, or a list of names
            from `METHODS`. Three that two-stream is never above are computed only when named.
        norm: 1, 2 or inf over the outputs.
        rounding: "auto" covers the float64 arithmetic of the certificate itself; True covers also
            the evaluation of both networks in their own precision (γ_n bounds, any order of
            summation); False neither.
        example: one input, where the box is given by numbers.
        output: which output, where the models return several; see `capture`. The others are not
            covered, and `assumptions` says so.
        alpha, beta: the levels of the statistical certificate; 0.05 each.
        restarts, steps: of the search for a lower bound, 4 and 10; 0 restarts look at the centre
            only.
        effort: a limit on cells of backward passes of the linear relaxation, per box, 1e9. Where it
            cannot pay for all neurons, those that lose most come first, and affine forms bound the
            others. Where all neurons cost more than a twentieth of it, a few are tried first, and
            boxes that would gain less than a third keep intervals.
        symbols: the most symbols of one affine form (memory grows with them); None for what 64 MB
            per value hold.
        seconds: the time the whole may take, None for no limit. The cheap methods always finish;
            what was cut short is written into the result, which holds the best bound so far.
        progress: called with a line of text after each step.
        generator: of the search's random starts.

    Assumes nothing silently: methods whose assumptions fail are left out, and `skipped` says why.

    >>> import torch
    >>> dense = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(dense.weight, 1.0)
    >>> sparse = nn.Linear(2, 1, bias=False)
    >>> sparse.weight.data = torch.tensor([[1.0, 0.0]])
    >>> cert = certify(dense, sparse, box=(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]])))
    >>> round(cert.bound, 9), cert.lower_bound
    (3.0, 3.0)

    Reference: Gonon et al. 2024, Theorems 3.1 and C.1; the other methods are ours or cited where
    they live.
    """
    wanted, chosen = (
        checked_options(methods, norm, rounding),
        settings(options, certify),
    )
    seen = (
        None
        if data is None
        else statistical(
            dense,
            sparse,
            data=data,
            alpha=chosen.alpha,
            beta=chosen.beta,
            norm=norm,
            output=_picking(chosen.output),
        )
    )
    # Data alone: no structure is read, so any two modules will do.
    if data is not None and box is None and around is None and radius is None:
        _check_unused(methods, rounding)
        return replace(
            _on_data(dense, sparse, data, norm, chosen.output),
            statistical=seen,
            states=states_of(dense, sparse),
        )
    domain = _domain(box, _plain(around), radius, data, clip, _plain(example))
    problem = read_problem(
        dense,
        sparse,
        domain.example,
        output=chosen.output,
        unit=0.0 if rounding is False else OWN_UNIT,
        effort=chosen.effort,
        symbols=chosen.symbols,
        clock=Clock(seconds=chosen.limit, tell=chosen.progress),
    )
    # After the reading, which refuses weights that are here in pieces only.
    states = states_of(dense, sparse)
    _check_casts(problem, rounding)
    problem.clock.report("both networks are read")
    # The search comes first: `prove` compares what it proves with what was found, and a
    # bound below a fact stops the program.
    found = look(
        problem,
        domain,
        restarts=chosen.restarts,
        steps=chosen.steps,
        generator=chosen.generator,
    )
    return replace(
        prove(problem, domain, found, methods=wanted, norm=norm, rounding=rounding),
        statistical=seen,
        states=states,
    )


def _plain(given: Tensor | None) -> Tensor | None:
    """What was made in inference mode, as a tensor that gradients may pass."""
    made_there = isinstance(given, Tensor) and given.is_inference()
    return given.clone() if given is not None and made_there else given


def _picking(output: str | int | None) -> Callable[[Any], Tensor] | None:
    return None if output is None else partial(named_output, name=output)


def _on_data(
    dense: nn.Module,
    sparse: nn.Module,
    data: Any,
    norm: float,
    output: str | int | None,
) -> Certificate:
    """The deviation on the inputs given, each exactly as it is."""
    seen = observe(dense, sparse, data, norm, _picking(output))
    one = () if len(seen.outputs) < 2 else (of_one_output(seen.outputs, output),)
    largest = float(seen.sizes.max())
    return Certificate(
        bound=largest,
        per_output=seen.per_output,
        per_box=seen.per_output.unsqueeze(0).flatten(1),
        balls=seen.sizes,
        # On finitely many inputs the largest deviation is bound and fact at once.
        lower_bound=largest,
        lower_per_output=seen.per_output,
        lower_balls=seen.sizes,
        worst_input=seen.worst,
        norm=norm,
        method="statistical",
        bounds={"statistical": largest},
        skipped={},
        assumptions=(
            "the bound holds for these inputs, evaluated as now; for fresh ones see `statistical`",
            *one,
        ),
        domain=f"{len(seen.sizes)} inputs given",
        rounding="both networks' own evaluation",
    )


def _domain(
    box: Any,
    around: Any,
    radius: float | None,
    data: Any,
    clip: tuple[float, float] | None,
    example: Tensor | None,
) -> Domain:
    given = [
        name
        for name, value in (("box", box), ("around", around))
        if value is not None
    ]
    if len(given) == 2 or (box is not None and radius is not None):
        raise ArgumentError(
            "a domain is given by box, or by around (or data) and radius, not by both."
        )
    if box is not None:
        return box_domain(box, example=example)
    if around is None and data is None:
        raise DomainError(
            "say for which inputs: box=(lo, hi), around=x with radius=r, or data=inputs."
        )
    return ball_domain(
        inputs_of(data)[0] if around is None else around, radius, clip=clip
    )


def _check_unused(methods: str | Sequence[str], rounding: Rounding) -> None:
    """With data alone nothing is bounded, so these would be ignored."""
    given = [
        f"{name}={value!r}"
        for name, value in (("methods", methods), ("rounding", rounding))
        if value != "auto"
    ]
    if given:
        raise ArgumentError(
            f"{', '.join(given)} with data= alone: that certificate is statistical and bounds no"
            " domain. Add radius= for a ball around each input, or leave the option out."
        )


def checked_options(
    methods: str | Sequence[str], norm: float, rounding: Rounding
) -> list[str]:
    """The names of the methods; a method, norm or rounding that is not offered is refused."""
    if norm not in (1, 2, math.inf):
        raise ArgumentError(f"norm={norm!r} is not offered; choose 1, 2 or inf.")
    if rounding not in (True, False, "auto"):
        raise ArgumentError(
            f"rounding={rounding!r} is not offered; choose 'auto', True or False."
        )
    return _methods(methods)


def _methods(methods: str | Sequence[str]) -> list[str]:
    names = (
        automatic()
        if methods == "auto"
        else [methods]
        if isinstance(methods, str)
        # Each once, however often it is named.
        else list(dict.fromkeys(methods))
    )
    wrong = [name for name in names if name not in METHODS]
    if wrong or not names:
        known = [*METHODS.names(), "auto"]
        if not wrong:
            raise ArgumentError(
                f"methods is empty; choose 'auto' or among {', '.join(known)}."
            )
        raise UnknownNameError(
            "; ".join(unknown("certificate method", name, known) for name in wrong)
        )
    return names


def _check_casts(problem: Problem, rounding: Rounding) -> None:
    """An evaluation that changes precision on the way has no error bound here."""
    casts = rounding_casts(problem)
    if casts and rounding is True:
        raise ArgumentError(
            f"rounding=True covers one precision throughout, but the model converts {casts[0]}"
            f"{f' and {len(casts) - 1} more' if casts[1:] else ''}. Remove the conversion, or use"
            " rounding='auto', which speaks of real numbers."
        )
