"""What stands around the bounds: domains, rounding, precision, search and options."""

import copy
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from proof.pairs import pair
from secateurs.base.random import generator as seeded
from secateurs.errors import ArgumentError
from secateurs.proof import METHODS, recheck
from secateurs.proof.certify import prove
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import NAMED_ONLY, run_methods
from secateurs.proof.problem import read_problem
from tiny_networks import KINDS, pruned, randomize, tuned


def rational(model: nn.Sequential, x: list[Fraction]) -> list[Fraction]:
    for layer in model:
        if isinstance(layer, nn.ReLU):
            x = [max(v, Fraction(0)) for v in x]
        else:
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            x = [
                sum(
                    (Fraction(w) * v for w, v in zip(row, x, strict=True)),
                    Fraction(b),
                )
                for row, b in rows
            ]
    return x


def extreme(g: torch.Generator) -> tuple[nn.Sequential, nn.Sequential]:
    """Weights of size 1e-8 to 1e8, and a change that is tiny beside them."""

    def scaled(*shape: int) -> Tensor:
        size = torch.randint(-8, 9, shape, generator=g).double()
        return torch.randn(shape, generator=g, dtype=torch.float64) * 10.0**size

    models = []
    for _ in range(2):
        models.append(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double().eval())
    for one, two in zip(models[0], models[1], strict=True):
        if isinstance(one, nn.Linear):
            one.weight.data, one.bias.data = (
                scaled(*one.weight.shape),
                scaled(*one.bias.shape),
            )
            two.weight.data = one.weight.data.clone()
            two.bias.data = one.bias.data + scaled(*one.bias.shape) * 1e-9
    return models[0], models[1]


@pytest.mark.parametrize("method", [m for m in METHODS.names() if m not in NAMED_ONLY])
def test_bounds_cover_exact_rationals_at_extreme_scales(method):
    g = seeded(1, "rationals")
    for _ in range(24):
        dense, sparse = extreme(g)
        centre = torch.randn(1, 1, generator=g, dtype=torch.float64)
        radius = 10.0 ** float(torch.randint(-14, 1, (), generator=g))
        domain = ball_domain(centre, radius)
        problem = read_problem(dense, sparse, centre)
        bound = run_methods(problem, domain, [method])[0][method].per_output[0]
        for point in (domain.lo, domain.hi, domain.center):
            x = [Fraction(v) for v in point.flatten().tolist()]
            gaps = [
                abs(a - b) for a, b in zip(rational(dense, x), rational(sparse, x), strict=True)
            ]
            for gap, limit in zip(gaps, bound.tolist(), strict=True):
                assert math.isinf(limit) or gap <= Fraction(limit)


def test_a_tiny_bias_beside_a_large_weight_is_seen():
    def relu_of(weight: float, bias: float) -> nn.Module:
        layer = nn.Linear(1, 1).double()
        layer.weight.data.fill_(weight)
        layer.bias.data.fill_(bias)
        return nn.Sequential(layer, nn.ReLU()).eval()

    dense, sparse = relu_of(1e8, 1e-9), relu_of(1e8, 0.0)
    x = torch.ones(1, 1, dtype=torch.float64)
    for method in ("interval", "affine", "linear"):
        certificate = sc.certify(dense, sparse, around=x, radius=1e-12, methods=method)
        assert certificate.bound >= 1e-9
    # A difference has a centre of its own, so the bound keeps the digits that the values lose.
    tight = sc.certify(dense, sparse, around=x, radius=1e-12, methods="interval")
    assert tight.bound <= 1.001e-9


def test_a_bound_is_never_nan():
    """300 terms of bfloat16: γ₃₀₀ is infinite, and ∞ · 0 is not a number."""
    dense = nn.Sequential(nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 2)).to(torch.bfloat16)
    sparse = nn.Sequential(nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 2)).to(torch.bfloat16)
    with torch.no_grad():
        dense[0].weight[0].zero_()
        sparse[0].weight[0].zero_()
    x = torch.zeros(1, 300).to(torch.bfloat16)
    certificate = sc.certify(dense, sparse, around=x, radius=0.0, rounding=True)
    assert not bool(certificate.per_output.isnan().any()) and not math.isnan(certificate.bound)


def test_what_was_found_never_exceeds_the_bound():
    for seed in range(3):
        dense, sparse = pair(seed)
        certificate = sc.certify(dense, sparse, around=torch.randn(4, 3), radius=0.0)
        assert certificate.lower_bound <= certificate.bound
        assert bool((certificate.lower_balls <= certificate.balls).all())


@pytest.mark.parametrize("effort", [1e9, 3e3])
def test_a_balls_bound_does_not_depend_on_its_company(effort):
    dense, sparse = pair(hidden=12)
    deep = nn.Sequential(dense, nn.ReLU(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    other = nn.Sequential(sparse, *list(deep)[1:]).eval()
    x = torch.randn(9, 3, generator=seeded(0, "company"))
    kind = {"radius": 0.3, "effort": effort, "restarts": 0}
    together = sc.certify(deep, other, around=x, **kind).balls
    alone = [sc.certify(deep, other, around=x[i : i + 1], **kind).bound for i in (0, 4)]
    assert together[[0, 4]].tolist() == pytest.approx(alone, rel=1e-9)


def test_methods_that_never_win_are_computed_only_when_named():
    dense, _ = pair()
    sparse = pruned(dense, seeded(0, "named"))
    box = {"around": torch.zeros(1, 3), "radius": 0.5}
    assert not set(sc.certify(dense, sparse, **box).bounds) & set(NAMED_ONLY)
    named = sc.certify(dense, sparse, methods=[*NAMED_ONLY, "two-stream"], **box).bounds
    assert set(NAMED_ONLY) <= set(named)
    assert all(named["two-stream"] <= named[name] * (1 + 1e-9) for name in NAMED_ONLY)


def test_a_budget_of_time_leaves_a_bound_and_says_so():
    dense, sparse = pair()
    lines = []
    x = {"around": torch.zeros(3, 3), "radius": 0.2}
    quick = sc.certify(dense, sparse, seconds=1e-9, progress=lines.append, **x)
    whole = sc.certify(dense, sparse, progress=lines.append, **x)
    assert whole.bound <= quick.bound < math.inf
    assert "no time was left" in quick.skipped["linear"] and set(whole.skipped) == {"zonotope"}
    assert "say seconds=" in quick.skipped["linear"]
    assert any("linear: part 1 of 1" in line for line in lines)
    with pytest.raises(ArgumentError, match="seconds=0"):
        sc.certify(dense, sparse, seconds=0, **x)


@pytest.mark.parametrize("kind", KINDS)
def test_interval_is_never_looser_than_the_intervals_of_both_networks(kind):
    g = seeded(3, kind)
    make, shape = KINDS[kind]
    dense = randomize(make(), g)
    for sparse in (tuned(dense, g, size=1.0), randomize(make(), g)):
        x = torch.randn(4, *shape, generator=g)
        problem = read_problem(dense, sparse, x[:1], unit=0.0)
        domain = ball_domain(x, 0.5)
        ours = run_methods(problem, domain, ["interval"])[0]["interval"].per_output
        ends = [own_interval(own.graph, own.state, domain) for own in problem.own]
        (low, high), (glow, ghigh) = ends
        plain = torch.maximum(high - glow, ghigh - low).flatten(1)
        assert bool((ours <= plain * (1 + 1e-9) + 1e-12).all())


def own_interval(graph, state, domain):
    """Plain interval bounds of one network: an own, short propagation."""
    from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural

    values = {}
    for node in graph.nodes:
        xs = [values[name] for name in node.inputs]
        match node:
            case Input():
                y = domain.lo, domain.hi
            case Affine() if not xs:
                b = node.apply(None, None, node.bias_in(state))
                y = (
                    b.expand(len(domain), *b.shape[1:]),
                    b.expand(len(domain), *b.shape[1:]),
                )
            case Affine():
                w, b = node.weight_in(state), node.bias_in(state)
                centre, radius = (xs[0][0] + xs[0][1]) / 2, (xs[0][1] - xs[0][0]) / 2
                size = None if w is None else w.abs()
                c = torch.cat([node.apply(t[None], w, b) for t in centre])
                r = torch.cat([node.linear(t[None], size) for t in radius])
                y = c - r, c + r
            case Activation():
                y = tuple(node.apply(t) for t in xs[0])
            case Pool():
                y = tuple(torch.cat([node.maximum(t[None]) for t in end]) for end in xs[0])
            case Structural():
                y = tuple(
                    torch.cat(
                        [node.function(*(x[e][i : i + 1] for x in xs)) for i in range(len(domain))]
                    )
                    for e in (0, 1)
                )
            case Add():
                signed = [
                    x if s > 0 else (-x[1], -x[0]) for s, x in zip(node.signs, xs, strict=True)
                ]
                y = tuple(sum(x[e] for x in signed) for e in (0, 1))
        values[node.name] = y
    return values[graph.output]


def test_prove_raises_an_alarm_if_a_found_deviation_exceeds_the_bound():
    from secateurs.errors import TheoryError
    from secateurs.proof.certificate import Certificate

    dense, sparse = pair()
    problem = read_problem(dense, sparse, torch.zeros(1, 3))
    domain = ball_domain(torch.zeros(1, 3), 0.1)
    proof = prove(problem, domain, methods=["interval"], norm=math.inf, rounding="auto")
    # A network that is not the one bounded.
    own = problem.own[0]
    name = own.graph.nodes[-1].bias.direct
    moved = replace(own, state={**own.state, name: own.state[name] + 10})
    problem = replace(problem, own=(moved, problem.own[1]))
    with pytest.raises(TheoryError, match="the proof is at fault"):
        Certificate.of(proof, problem.differences(domain.center))


def steep():
    """A deep network whose intervals grow much faster than its values, and a changed one."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 12), nn.ReLU()]
    for _ in range(24):
        layers += [nn.Linear(12, 12), nn.ReLU()]
    f = nn.Sequential(*layers, nn.Linear(12, 2)).double().eval()
    for p in f.parameters():
        p.data *= 2.4
    g = copy.deepcopy(f)
    for p in g.parameters():
        p.data += 0.01 * torch.randn_like(p)
    return f, g


def test_no_hopeless_work():
    """Where nothing could come of them the costly methods rest, and the certificate says what would
    help; whoever names them, or gives time, has them run.
    """
    f, g = steep()
    x = torch.tensor([[0.3, -0.2, 0.5]]).double()
    asked = {"around": x, "radius": 3.0, "effort": 2e4}
    lines = []
    cert = sc.certify(f, g, **asked, progress=lines.append)
    # The search is short then: from two starts instead of five.
    assert sum("search: start 2 of 2" in line for line in lines) == 1
    assert not any("of 5" in line for line in lines)
    assert {"affine", "linear"} <= set(cert.skipped) and set(cert.bounds) <= {
        "interval",
        "two-stream",
        "zonotope",
    }
    assert cert.skipped["linear"].startswith("skipped: ") and "radius" in cert.skipped["linear"]
    assert cert.verdict.startswith("vacuous: ") and cert.verdict.endswith("what would help")
    # The short search has climbed from the centre.
    assert cert.bound >= cert.found > float((f(x) - g(x)).abs().max().detach())
    there = float((f(cert.worst_input) - g(cert.worst_input)).abs().max().detach())
    assert there == pytest.approx(cert.found, rel=1e-12)
    # After 50 layers no bound of rounding is small.
    assert cert.lower_bound == 0 and f"({cert.found:.6g} in float64" in str(cert)
    aimed = replace(cert, request=replace(cert.request, target=cert.found / 2), share=0.0)
    assert aimed.answer == "open" and str(aimed).endswith("its rounding could be the reason")
    again = recheck(cert.to_json(), f, g)
    assert again.holds, again.problems
    edited = cert.to_json().replace('"spare": true', '"spare": false')
    assert not recheck(edited, f, g).holds
    named = ["two-stream", "interval", "affine", "linear"]
    for way in ({"methods": named}, {"seconds": 60.0}):
        whole = sc.certify(f, g, **asked, **way)
        assert "linear" in whole.bounds and whole.bound <= cert.bounds["interval"]
    # With the effort that all passes need, nothing is spared.
    assert "linear" in sc.certify(f, g, around=x, radius=3.0, effort=1e6).bounds


def test_a_ball_for_which_a_probe_has_hope_is_bounded(monkeypatch):
    """Intervals are far off there, and passes are not."""
    f, g = steep()
    monkeypatch.setattr("secateurs.proof.methods._FAR", 1.0)
    monkeypatch.setattr("secateurs.proof.methods._MAPPED", 0)
    x = torch.tensor([[0.3, -0.2, 0.5]]).double()
    asked = {"around": x, "radius": 1e-6, "effort": 2e4}
    cheap = sc.certify(f, g, methods="interval", **asked)
    assert cheap.bound > 100 * cheap.worth.output_range
    assert "linear" in sc.certify(f, g, **asked).bounds
    monkeypatch.setattr("secateurs.proof.methods._NEAR", 0.0)
    assert "linear" not in sc.certify(f, g, **asked).bounds


def test_a_hopeless_ball_leaves_its_company_alone(monkeypatch):
    monkeypatch.setattr("secateurs.proof.methods._MAPPED", 0)
    f, g = steep()
    x = torch.tensor([[0.3, -0.2, 0.5]]).double()
    lo = torch.cat([x - 3.0, x - 1e-4])
    hi = torch.cat([x + 3.0, x + 1e-4])
    both = sc.certify(f, g, box=(lo, hi), effort=2e4)
    alone = sc.certify(f, g, box=(lo[1:], hi[1:]), effort=2e4)
    assert both.balls[1] == alone.balls[0] and "linear" in both.bounds
    assert any("hopeless" in text for text in both.assumptions)
    assert recheck(both.to_json(), f, g).holds
