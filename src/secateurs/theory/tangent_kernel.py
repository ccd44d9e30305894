"""Random masks at initialisation seen through the tangent kernel: Theorem 7.2 and exact errors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.base.copies import call_with, evaluating
from secateurs.base.interrupts import Uninterrupted
from secateurs.base.prunable import Where, prunable
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError, TheoryError
from secateurs.theory.guarantee import check_positive
from secateurs.theory.sketching import check_share, finite, mix_uniform, per_draw, whole

# J(θ)θ of a network: the column norms of the Jacobian of all outputs on all inputs, never held
# whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearised:
    """θ, the column norms ‖J_(k)‖ and ‖Jθ‖², flat over the chosen parameters."""

    theta: Tensor
    columns: Tensor
    energy: float
    shapes: dict[str, torch.Size]

    @property
    def scores(self) -> Tensor:
        return self.columns * self.theta.abs()


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianRun:
    """The name of a model in errors, and how its J is computed: rows at a time, and dtype."""

    name: str
    chunk_size: int
    dtype: torch.dtype


def linearise(model: nn.Module, names: Sequence[str], x: Tensor, run: JacobianRun) -> Linearised:
    """Of the parameters of these names; modules run in evaluation mode on copies, nothing of the
    model changes.
    """
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and value.numel():
            finite(f"{run.name} {name!r}", value.detach())
    chosen = {
        name: parameter.detach().to(run.dtype)
        for name, parameter in _parameters_of(model, names).items()
    }
    theta = torch.cat([value.flatten() for value in chosen.values()]).double()
    squares, energy = torch.zeros_like(theta), 0.0
    for rows in _jacobian_rows(model, chosen, x, run):
        # Only sums of squares are kept: J itself has outputs × parameters entries.
        squares += rows.square().sum(0)
        energy += float((rows @ theta).square().sum())
    if not math.isfinite(energy + float(squares.sum())):
        raise TheoryError(
            f"the Jacobian of {run.name} on x overflows or is NaN: no expectation can be formed."
        )
    shapes = {name: value.shape for name, value in chosen.items()}
    return Linearised(theta=theta, columns=squares.sqrt(), energy=energy, shapes=shapes)


def _parameters_of(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names; a name the model lacks is refused with its nearest names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in known]
    if missing:
        raise ParameterError("; ".join(unknown("parameter", name, known) for name in missing[:3]))
    return {name: known[name] for name in names}


def _jacobian_rows(
    model: nn.Module, chosen: Mapping[str, Tensor], x: Tensor, run: JacobianRun
) -> Iterator[Tensor]:
    """Rows of J, a few outputs at a time."""
    state = {
        name: _copy(value, run.dtype)
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    # Token ids stay integers.
    inputs = finite("x", x).to(run.dtype) if x.is_floating_point() else x

    def output(parameters: Mapping[str, Tensor]) -> Tensor:
        result = call_with(model, {**state, **parameters}, (inputs,))
        if not isinstance(result, Tensor):
            raise ArgumentError(
                f"{run.name} returns a {type(result).__name__}: wrap it so that it returns one"
                " tensor."
            )
        return result.flatten()

    with evaluating(model):
        values, pull = _pull_back(output, chosen, x, run)
        # One unit vector per output; the chunk bounds how many rows of J exist at once.
        basis = torch.eye(values.numel(), dtype=values.dtype, device=values.device)
        for part in torch.split(basis, run.chunk_size):
            with Uninterrupted():
                (grads,) = torch.func.vmap(pull)(part)
            yield torch.cat([grads[name].flatten(1) for name in chosen], 1).double()


def _pull_back(
    output: Callable[[Mapping[str, Tensor]], Tensor],
    chosen: Mapping[str, Tensor],
    x: Tensor,
    run: JacobianRun,
) -> tuple[Tensor, Callable[[Tensor], tuple[dict[str, Tensor]]]]:
    try:
        with Uninterrupted():
            values, pull = torch.func.vjp(output, dict(chosen))[:2]
    except RuntimeError as error:
        raise TheoryError(
            f"{run.name} does not run on x of shape {tuple(x.shape)} in {run.dtype}: {error} Give"
            " inputs that fit; for a module that makes tensors of its own precision, pass"
            " dtype=torch.float32."
        ) from error
    return values, pull


def _copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    return (
        value.detach().to(dtype, copy=True) if value.is_floating_point() else value.detach().clone()
    )


def chosen_parameters(model: nn.Module, where: Where) -> Mapping[str, nn.Parameter]:
    """All trainable parameters, or those that `where` picks."""
    if where is not None:
        return prunable(model, where)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise EmptySelectionError(
            f"{type(model).__name__} has no trainable parameter: choose some by where=, or let them"
            " require gradients."
        )
    return prunable(model, lambda name, parameter, owner: parameter.requires_grad)


def check_features_drawn(p: Tensor, start: Linearised, end: Linearised) -> None:
    """Whatever matters to the features of the end must have a chance to be drawn."""
    lost = (p == 0) & (end.scores > 0)
    if bool(lost.any()):
        counts = {name: int(part.sum()) for name, part in unflatten(lost, start.shapes).items()}
        raise TheoryError(
            f"{int(lost.sum())} parameters matter to the trained features and have probability 0"
            f" ({', '.join(f'{n} in {name!r}' for name, n in counts.items() if n)}): the mask is"
            " biased. Mix in uniform mass (uniform=0.1), or leave them out with where=."
        )


def unflatten(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Back to one tensor per parameter."""
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {
        name: part.reshape(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)
    }


# Whether one model is the other after training: the same modules, settings and parameters.


def check_same(model: nn.Module, trained: nn.Module) -> None:
    """The trained model must have the parameters of the model."""
    wanted, found = (
        {name: tuple(p.shape) for name, p in m.named_parameters()} for m in (model, trained)
    )
    problems = [
        f"{name!r} {shape} is missing" for name, shape in wanted.items() if name not in found
    ]
    problems += [
        f"{name!r} {shape} is not in the model"
        for name, shape in found.items()
        if name not in wanted
    ]
    problems += [
        f"{n!r} is {found[n]}, in the model {wanted[n]}"
        for n in wanted
        if found.get(n, wanted[n]) != wanted[n]
    ]
    problems += _other_modules(model, trained)
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ArgumentError(
            "trained= is not a trained version of the model:"
            f" {'; '.join(problems[:4])}{more}."
            " Give the same network after training."
        )


def _other_modules(model: nn.Module, trained: nn.Module) -> list[str]:
    """Modules of another type or with other settings: their Jacobians are of another function."""
    wanted, found = (dict(m.named_modules()) for m in (model, trained))
    pairs = [(n, wanted.get(n), found.get(n)) for n in dict.fromkeys([*wanted, *found])]
    return [
        f"{name or 'the model'!r} is {_describe(theirs)}, in the model {_describe(ours)}"
        for name, ours, theirs in pairs
        if _describe(ours) != _describe(theirs)
    ]


_ONLY_IN_TRAINING = {"training", "inplace", "momentum", "p", "num_batches_tracked"}


def _describe(module: nn.Module | None) -> str:
    """The type of a module and what it holds beside tensors and modules."""
    if module is None:
        return "missing"
    kept = {
        key: getattr(value, "__qualname__", value)
        for key, value in vars(module).items()
        if not key.startswith("_")
        # Dropout's p, say, changes nothing in evaluation mode, in which J is taken.
        and key not in _ONLY_IN_TRAINING
        and (callable(value) or isinstance(value, bool | int | float | str | tuple))
    }
    settings = ", ".join(f"{key}={value}" for key, value in sorted(kept.items()))
    return f"{type(module).__name__}({settings})"


# Theorem 7.2: what a mask drawn at initialisation loses of the trained network's features.


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkConstants:
    """The constants of Theorem 7.2: ‖J‖_F ≤ K and ‖J(θ)−J(θ')‖_F ≤ K‖θ−θ'‖ near θ0, radius constant
    R0, λ_min.
    """

    K: float
    R0: float
    lambda_min: float


def theorem_72(
    theta: Tensor,
    columns: Tensor,
    *,
    constants: NtkConstants,
    s: int,
    as_printed: bool = False,
) -> float:
    """Theorem 7.2: E‖f_lin_t − J(θt)(θt⊙m)‖² ≤ (1/s) K³ ‖θ0‖₁ F(J) (‖θ0‖₁ + 9K²R0²F(θ0)/λ² + 6√d K
    R0/λ).

    F(A) = Σ_k 1/‖A_(k)‖ over the columns of J(θ0) (given by their norms, `columns`) and over the
    entries of θ0, with ‖θt − θ0‖ ≤ 3KR0/λ_min. The paper has K⁴ for K² and K³ for K: larger, hence
    also valid, for K > 1 as it assumes; the proof needs the smaller powers only. Infinite F (a zero
    parameter, a dead column) raises.
    """
    check_positive(K=constants.K, R0=constants.R0, lambda_min=constants.lambda_min)
    s, theta, columns = (
        whole("s", s),
        finite("theta", theta).flatten(),
        finite("columns", columns).flatten(),
    )
    _check_invertible(theta, columns, constants)
    size, F_theta, F_J = (
        float(theta.abs().sum()),
        float((1 / theta.abs()).sum()),
        float((1 / columns).sum()),
    )
    K, drift = constants.K, constants.R0 / constants.lambda_min
    # The paper has K⁴ and K³ where the proof gives K² and K (docs/errata.md).
    extra = K**2 if as_printed else 1.0
    far = 9 * K**2 * extra * drift**2 * F_theta + 6 * math.sqrt(theta.numel()) * K * extra * drift
    return K**3 * size * F_J * (size + far) / s


def _check_invertible(theta: Tensor, columns: Tensor, constants: NtkConstants) -> None:
    """One column norm per parameter, none of either zero, and a K that holds for them."""
    if len(theta) != len(columns):
        raise ArgumentError(
            f"theta has {len(theta)} entries, columns {len(columns)}: give one norm per parameter."
        )
    dead = {
        "theta_0": int((theta == 0).sum()),
        "J(theta_0)": int((columns == 0).sum()),
    }
    if any(dead.values()):
        named = ", ".join(f"{n} zero entries or columns in {name}" for name, n in dead.items() if n)
        raise TheoryError(
            f"Theorem 7.2 divides by them: {named}. The bound is infinite; use the exact"
            " expectation."
        )
    # A tiny slack: K may have been taken from this very norm, printed with few digits.
    if float(columns.norm()) > constants.K * (1 + 1e-6):
        raise TheoryError(
            f"K = {constants.K:g} is below ‖J(theta_0)‖_F = {float(columns.norm()):g}, which it"
            " must bound."
        )


# Sketching the linearised features of a network: Theorem 7.2 and the exact expectations behind it.
#
# Source: Bar & Giryes (2023), section 7 and appendix B.6. f_lin(x) = J(θ)θ with J the Jacobian of
# all outputs on all inputs; the mask is drawn by Algorithm 1 with p_k ∝ ‖J_(k)‖|θ_k|, J_(k) the
# k-th column.


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkSketch:
    """Exact expected squared errors of the masked linearised features; `energy` is ‖J(θ)θ‖².

    `expected` and `uniform` are for masks drawn by p and uniformly; `bound` is Theorem 7.2's, None
    without constants. `frobenius` = ‖J(θ0)‖_F, a lower bound on any valid K.
    """

    probabilities: dict[str, Tensor]
    expected: float
    uniform: float
    energy: float
    frobenius: float
    bound: float | None

    @property
    def relative(self) -> float:
        """Expected squared error over ‖J(θ)θ‖²; above 1, the zero mask is better."""
        return self.expected / self.energy if self.energy > 0 else math.inf


def ntk_sketch(
    model: nn.Module,
    example: Tensor,
    s: int,
    *,
    where: Where = None,
    trained: nn.Module | None = None,
    uniform: float = 0.0,
    constants: NtkConstants | None = None,
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
) -> NtkSketch:
    """How well s random parameters carry the linearised features J(θ)θ of the model on x.

    θ is all trainable parameters, biases and norms included, as in Theorem 7.2; `where` restricts
    it (names, globs, types or predicates, as in `prune_`; `nn.Linear` are the weights of linear
    layers), and J to their columns. The mask's probabilities come from the model (θ0); the error is
    that of `trained` (θt) with its own Jacobian, or of the model itself: E‖Jθ − J(θ⊙m)‖² = (1/s)Σ_k
    ‖J_(k)‖²θ_k²/p_k − (1/s)‖Jθ‖² (Lemma 4.3, exact). Modules run in evaluation mode on copies of
    their parameters in `dtype`; nothing of the model changes. J is never held whole: rows in
    chunks.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> ntk_sketch(model, torch.eye(2), s=1).expected  # (1 + 1)² − 2
    2.0
    """
    s = whole("s", s)
    check_share(uniform)
    names = list(chosen_parameters(model, where))
    start = end = linearise(
        model,
        names,
        example,
        JacobianRun(name="the model", chunk_size=chunk_size, dtype=dtype),
    )
    if trained is not None:
        check_same(model, trained)
        end = linearise(
            trained,
            names,
            example,
            JacobianRun(name="trained=", chunk_size=chunk_size, dtype=dtype),
        )
    p = mix_uniform(start.scores, uniform, name="‖J_(k)‖·|θ_k|")
    check_features_drawn(p, start, end)
    first = float(per_draw(end.scores.square(), p).sum())
    bound = (
        None
        if constants is None
        else theorem_72(start.theta, start.columns, constants=constants, s=s)
    )
    return NtkSketch(
        probabilities=unflatten(p, start.shapes),
        expected=(first - end.energy) / s,
        uniform=(p.numel() * float(end.scores.square().sum()) - end.energy) / s,
        energy=end.energy,
        frobenius=float(start.columns.norm()),
        bound=bound,
    )
