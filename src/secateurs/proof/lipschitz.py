"""Lipschitz bounds of θ ↦ Φ(θ) and of θ ↦ R_θ(x): appendices E and F beside the certificates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.printing import Printed
from secateurs.errors import ArgumentError
from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural, propagate
from secateurs.paths.layered import MatrixLayer, layers_of
from secateurs.proof.forms import ParameterPair
from secateurs.proof.normalized import TheoremE1, theorem_e1
from secateurs.proof.path_streams import PathStreams
from secateurs.proof.problem import NetworkPair, read_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzBound:
    """One row: a bound of `of`, or why the theorem does not apply."""

    name: str
    of: str
    value: float | None
    applies: bool
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzBounds(Printed):
    """All rows for one pair of parameter vectors, at inputs with |x| ≤ `input_size`."""

    rows: tuple[LipschitzBound, ...]
    input_size: float

    def __getitem__(self, name: str) -> LipschitzBound:
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(
            f"there is no row {name!r}; there are {', '.join(row.name for row in self.rows)}."
        )

    def __rich__(self) -> Table:
        table = Table(title=f"Lipschitz bounds at ‖x‖_∞ ≤ {self.input_size:g}")
        for column in ("theorem", "bounds", "value", "remark"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(
                row.name,
                row.of,
                "—" if row.value is None else f"{row.value:.6g}",
                row.remark,
            )
        return table


# Lemma E.1 as a flow: how far path-liftings lie apart, from norms of incoming weights.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """Per neuron v: `gap` ≥ ‖Φ^{→v}(θ) − Φ^{→v}(θ')‖_q and `norm` = ‖Φ^{→v}(θ')‖_q; shapes of the
    node.
    """

    gap: Tensor
    norm: Tensor


class LemmaE1:
    """gap_v = (|Δb|^q + ‖Δθ^{→v}‖_q^q · max_u norm_u^q)^{1/q} + ‖θ^{→v}‖_q · max_u gap_u.

    For q = 1 this is equation (21), its maximum over paths taken neuron by neuron. For q > 1 the
    printed inequality is false (docs/errata.md); this one follows from Minkowski's inequality. The
    maximum over the antecedents u is taken over all values of the preceding node: the same for
    fully connected maps, larger for convolutions.
    """

    def __init__(self, q: float = 1.0) -> None:
        self.q = q

    def input(self, node: Input, value: Tensor) -> Lifted:
        """Φ^{→u} = 1 at an input."""
        return Lifted(gap=torch.zeros_like(value), norm=torch.ones_like(value))

    def affine(self, node: Affine, x: Lifted | None, params: ParameterPair) -> Lifted:
        """The step of the induction."""
        q = self.q
        b, c = params.offsets(node)
        if x is None:
            return Lifted(gap=(b - c).abs().expand(node.shape), norm=c.abs().expand(node.shape))
        w, v = params.weights(node)
        if w is None or v is None:
            return Lifted(
                gap=(x.gap**q + (b - c).abs() ** q) ** (1 / q),
                norm=(x.norm**q + c.abs() ** q) ** (1 / q),
            )
        # A map entry by entry has one antecedent per neuron, which is known: no maximum
        # needed.
        diagonal = node.operation.axes is not None and node.operation.axes.diagonal
        top_norm, top_gap = (t if diagonal else t.amax().expand_as(t) for t in (x.norm, x.gap))
        own = ((b - c).abs() ** q + node.linear(top_norm**q, (w - v).abs() ** q)) ** (1 / q)
        carried = node.linear(top_gap**q, w.abs() ** q) ** (1 / q)
        return Lifted(
            gap=own + carried,
            norm=(node.linear(x.norm**q, v.abs() ** q) + c.abs() ** q) ** (1 / q),
        )

    def activation(self, node: Activation, x: Lifted) -> Lifted:
        """A relu neuron has the paths of what enters it."""
        # A slope below 1 shrinks only the negative side, so the factor is never below
        # 1.
        stretch = max(1.0, abs(node.slope))
        return Lifted(gap=x.gap * stretch, norm=x.norm * stretch)

    def pool(self, node: Pool, x: Lifted) -> Lifted:
        """All paths of the window, with weights 1."""
        return Lifted(gap=self._sum(node, x.gap), norm=self._sum(node, x.norm))

    def structural(self, node: Structural, xs: Sequence[Lifted]) -> Lifted:
        """The same reordering."""
        return Lifted(
            gap=node.function(*(x.gap for x in xs)),
            norm=node.function(*(x.norm for x in xs)),
        )

    def add(self, node: Add, xs: Sequence[Lifted]) -> Lifted:
        """Paths of all branches."""
        gaps, norms = (
            torch.stack([getattr(x, k) ** self.q for x in xs]).sum(0) for k in ("gap", "norm")
        )
        return Lifted(gap=gaps ** (1 / self.q), norm=norms ** (1 / self.q))

    def _sum(self, node: Pool, value: Tensor) -> Tensor:
        return node.total(value**self.q) ** (1 / self.q)


def lipschitz_bounds(
    dense: nn.Module, sparse: nn.Module, example: Tensor, *, q: float = 1.0
) -> LipschitzBounds:
    """How far Φ(a) and Φ(b), and R_a(x) and R_b(x), can lie apart, by every theorem of the paper
    that applies.

    Rows: "lemma E.1" (‖Φ(θ) − Φ(θ')‖_q, any graph), "theorem E.1" (the same through normalised
    parameters, any graph, q = 1: shared weights are normalised neuron by neuron), "theorem 3.1" and
    "corollary F.1", "corollary F.1 (older bound)" for ‖R_θ(x) − R_θ'(x)‖₁.

    Args:
        example: inputs of the models; their largest |x| enters the bounds of R.
        q: exponent of the norm of Φ.

    >>> a, b = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    >>> a.weight.data, b.weight.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.5]])
    >>> bounds = lipschitz_bounds(a, b, torch.ones(1, 2))
    >>> bounds["lemma E.1"].value, bounds["theorem 3.1"].value, bounds["corollary F.1"].value
    (0.5, 0.5, 4.0)

    Reference: Gonon et al. 2024, Lemma E.1 (for q > 1 corrected, docs/errata.md), Theorem E.1,
    Corollary F.1.
    """
    if not 1 <= q < math.inf:
        raise ArgumentError(f"q={q!r}: these bounds hold for 1 ≤ q < ∞.")
    # These rows are values of formulas and no certificates: nothing is rounded
    # outwards.
    problem = read_problem(dense, sparse, example, unit=0.0)
    graph, pair = problem.graph, problem.pair
    size = float(example.abs().max())
    with torch.no_grad():
        one, two = layers_of(graph, pair.f), layers_of(graph, pair.g)
        rows = (
            _lemma(problem, q, example),
            _normalised_bound(problem, q, example),
            _theorem(problem, example),
            *_corollary(one, two, size),
        )
    return LipschitzBounds(rows=rows, input_size=size)


def _lemma(problem: NetworkPair, q: float, like: Tensor) -> LipschitzBound:
    """The lemma in both directions; the smaller holds."""
    fed = like.new_zeros(problem.graph.inputs[0].shape, dtype=torch.float64)
    # The lemma is not symmetric in θ and θ', but what it bounds is.
    pairs = (problem.pair, ParameterPair(f=problem.pair.g, g=problem.pair.f))
    gaps = [propagate(problem.graph, LemmaE1(q), [fed], pair).gap for pair in pairs]
    value = min(float(torch.linalg.vector_norm(gap.flatten(), ord=q)) for gap in gaps)
    remark = "" if q == 1 else "corrected for q > 1"
    return LipschitzBound(
        name="lemma E.1",
        of=f"‖Φ(θ) − Φ(θ')‖_{q:g}",
        value=value,
        applies=True,
        remark=remark,
    )


def _normalised_bound(problem: NetworkPair, q: float, like: Tensor) -> LipschitzBound:
    """Equation (22) for q = 1, both networks normalised."""
    name, of = "theorem E.1", "‖Φ(θ) − Φ(θ')‖_1"
    if q != 1:
        remark = "needs q = 1: for q > 1 it is false (docs/errata.md)"
        return LipschitzBound(name=name, of=of, value=None, applies=False, remark=remark)
    fed = like.new_zeros(problem.graph.inputs[0].shape, dtype=torch.float64)
    value = float(theorem_e1(propagate(problem.graph, TheoremE1(), [fed], problem.pair)))
    return LipschitzBound(
        name=name, of=of, value=value, applies=True, remark="normalised parameters"
    )


def _theorem(problem: NetworkPair, example: Tensor) -> LipschitzBound:
    name, of = "theorem 3.1", "‖R_θ(x) − R_θ'(x)‖_1"
    signs = problem.signs
    if not signs.same:
        remark = (
            f"needs θθ' ≥ 0, which fails for {signs.differing} parameter(s), first in {signs.first}"
        )
        return LipschitzBound(name=name, of=of, value=None, applies=False, remark=remark)
    fed = example.new_ones(1, *problem.graph.inputs[0].shape, dtype=torch.float64)
    # Biases count as inputs of size 1, so the input's size is at least that.
    metric = propagate(problem.graph, PathStreams(unit=problem.unit), [fed], problem.pair).d.sum()
    value = max(float(example.abs().max()), 1.0) * float(metric)
    return LipschitzBound(
        name=name,
        of=of,
        value=value,
        applies=True,
        # Without |θ'| ≤ |θ| the flow adds differences edge by edge, which is never
        # below the metric.
        remark="" if signs.dominated else "metric bounded",
    )


def _corollary(
    one: list[MatrixLayer] | None, two: list[MatrixLayer] | None, size: float
) -> tuple[LipschitzBound, ...]:
    """max(‖x‖_∞, 1)·2LW²R^{L−1}‖θ − θ'‖_∞; older: (W‖x‖_∞ + 1)WL²R^{L−1}‖θ − θ'‖_∞."""
    names, of = (
        ("corollary F.1", "corollary F.1 (older bound)"),
        "‖R_θ(x) − R_θ'(x)‖_1",
    )
    if one is None or two is None or any(layer.bias is not None for layer in (*one, *two)):
        remark = "needs a layered fully connected network without biases"
        return tuple(
            LipschitzBound(name=name, of=of, value=None, applies=False, remark=remark)
            for name in names
        )
    depth = len(one)
    width = max(max(layer.weight.shape) for layer in one)
    # The corollary takes R ≥ 1; of both networks, since either may be the larger one.
    rows = max(1.0, *(float(layer.weight.abs().sum(1).max()) for layer in (*one, *two)))
    gap = max(float((a.weight - b.weight).abs().max()) for a, b in zip(one, two, strict=True))
    common = width * rows ** (depth - 1) * gap
    values = (
        max(size, 1.0) * 2 * depth * width * common,
        (width * size + 1) * depth**2 * common,
    )
    remark = f"L = {depth}, W = {width}, R = {rows:.3g}"
    return tuple(
        LipschitzBound(name=name, of=of, value=value, applies=True, remark=remark)
        for name, value in zip(names, values, strict=True)
    )
