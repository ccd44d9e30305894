"""Zonotopes of two networks: exact where no neuron is open, shared where the networks agree, and
with remainders that stay small in deep networks.
"""

import copy
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import secateurs as sc
from proof.pairs import problem_of
from secateurs.base.random import generator
from secateurs.graph import Activation, capture, propagate
from secateurs.proof import methods, zonotope
from secateurs.proof.certify import prove, search_boxes
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import by_zonotopes, run_methods
from secateurs.proof.slabs import Slabs
from secateurs.proof.zonotope import Pair, Recomputed, Zonotopes, nodes_alone, point
from tiny_networks import KINDS, pruned, randomize


def network(depth: int = 4, width: int = 20, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Layers of one width, a pruned copy, both in float64."""
    g = generator(seed, "zonotopes")
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    dense = nn.Sequential(*layers, nn.Linear(width, 3)).double()
    for p in dense.parameters():
        # Scaled so that values neither die out nor explode.
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64) * (2 / width) ** 0.5
    return dense, pruned(dense, g)


def bound_of(dense, sparse, x, radius, **options):
    problem = replace(problem_of(dense, sparse, x), **options)
    return prove(
        problem, ball_domain(x, radius), methods=["zonotope"], norm=math.inf, rounding="auto"
    )


def test_where_no_neuron_is_open_the_bound_is_what_is_attained():
    dense, sparse = network()
    x = torch.randn(1, 20, generator=generator(1), dtype=torch.float64)
    radius = 1e-6
    cert = bound_of(dense, sparse, x, radius)
    slope = torch.autograd.functional.jacobian(lambda t: (dense(t) - sparse(t))[0], x)[:, 0]
    gap = (dense(x) - sparse(x))[0].abs() + radius * slope.abs().sum(dim=1)
    assert torch.allclose(cert.per_box[0], gap, rtol=1e-9)
    assert bool((cert.per_box[0] >= gap).all())


@pytest.mark.parametrize("radius", [1e-3, 0.1, 10.0])
def test_networks_that_agree_in_all_neurons_differ_by_what_their_ends_do(radius):
    dense, _ = network()
    other = copy.deepcopy(dense)
    other[-1].bias.data += 0.25
    x = torch.zeros(1, 20, dtype=torch.float64)
    cert = bound_of(dense, other, x, radius)
    # However many neurons are open: each error is one symbol of both.
    assert 0.25 <= cert.bound <= 0.25 + 1e-9 * (1 + radius)


@pytest.mark.parametrize("slope", [-3.0, -0.5, 0.0, 0.3, 1.0, 1.7, 4.0])
def test_symbols_that_networks_share_are_sound_for_any_slope(slope):
    g = generator(12, str(slope))
    layers = [nn.Linear(6, 8), nn.LeakyReLU(slope), nn.Linear(8, 8), nn.LeakyReLU(slope)]
    dense = randomize(nn.Sequential(*layers, nn.Linear(8, 2)).double(), g)
    for shift in (1e-3, 0.03, 0.3):
        other = copy.deepcopy(dense)
        other[0].bias.data += shift * torch.randn(8, generator=g, dtype=torch.float64)
        x = torch.randn(1, 6, generator=g, dtype=torch.float64)
        cert = bound_of(dense, other, x, 0.4)
        points = x + 0.4 * (2 * torch.rand(4000, 6, generator=g).double() - 1)
        points[::2] = x + 0.4 * (points[::2] - x).sign()
        with torch.no_grad():
            seen = (dense(points) - other(points)).abs().amax(dim=0)
        # But for the roundings of the two evaluations.
        assert bool((seen <= cert.per_box[0] + 1e-14).all())


def test_a_difference_stays_as_small_as_the_change_where_most_neurons_are_open():
    dense, _ = network()
    x = torch.zeros(1, 20, dtype=torch.float64)
    bounds = []
    for share in (1e-3, 1e-6):
        other, g = copy.deepcopy(dense), generator(13, "changes")
        for p in other.parameters():
            p.data *= 1 + share * torch.randn(p.shape, generator=g, dtype=torch.float64)
        bounds.append(bound_of(dense, other, x, 10.0).bound)
    assert bounds[1] == pytest.approx(bounds[0] / 1000, rel=0.05)


def test_what_is_known_of_a_network_does_not_depend_on_the_other():
    dense, sparse = network()
    x = torch.randn(1, 20, generator=generator(14), dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    ends = [
        by_zonotopes(problem_of(*both, x), ball_domain(x, 0.3)).pair.directions(eye, 2.0**-53)
        for both in ((dense, sparse), (sparse, copy.deepcopy(sparse)))
    ]
    # Ends of g, and of f; the difference may settle a neuron more.
    assert torch.allclose(ends[0][2:4], ends[1][:2], rtol=1e-9)


def test_the_bound_is_near_what_is_found():
    dense, sparse = network()
    x = torch.randn(1, 20, generator=generator(2), dtype=torch.float64)
    cert = bound_of(dense, sparse, x, 0.01)
    found = search_boxes(cert.problem, cert.domain, restarts=4, steps=10).per_output.max()
    assert found <= cert.bound <= 1.3 * found
    forms, _ = run_methods(cert.problem, cert.domain, ["affine", "two-stream"])
    assert cert.bound <= 1.05 * forms["affine"].per_output.max()


def test_without_room_for_symbols_the_rest_is_a_remainder():
    dense, sparse = network()
    x = torch.zeros(1, 20, dtype=torch.float64)
    most = bound_of(dense, sparse, x, 0.5)
    few = bound_of(dense, sparse, x, 0.5, symbols=22)
    assert any("got no symbol" in text for text in few.assumptions)
    assert not any("got no symbol" in text for text in most.assumptions)
    assert few.bound > 1.1 * most.bound
    _, skipped = run_methods(
        replace(most.problem, symbols=19), ball_domain(x, 0.5), ["zonotope", "interval"]
    )
    assert "20 open inputs need a symbol each, 19 are allowed" in skipped["zonotope"]


def test_remainders_of_deep_networks_are_given_symbols(monkeypatch):
    dense, sparse = network(depth=60, width=24)
    x = torch.randn(1, 24, generator=generator(3), dtype=torch.float64)
    tight = bound_of(dense, sparse, x, 1e-9)
    with torch.no_grad():
        centre = (dense(x) - sparse(x)).abs().max()
    assert centre <= tight.bound <= centre * (1 + 1e-4)
    # Carried through |W| alone, the same roundings are all that is left, but for passes.
    monkeypatch.setattr(zonotope, "_AFFORDABLE", 0)
    found = by_zonotopes(problem_of(dense, sparse, x), ball_domain(x, 1e-9))
    assert found.pair.difference(2.0**-53).max() > 2 * tight.bound


def test_evaluation_in_single_precision_is_covered_by_passes():
    dense, sparse = (m.float() for m in network(depth=10))
    x = torch.randn(1, 20, generator=generator(4))
    ball = {"around": x, "radius": 1e-4, "restarts": 1}
    exact = sc.certify(dense, sparse, methods="zonotope", **ball)
    evaluated = sc.certify(dense, sparse, methods="zonotope", rounding=True, **ball)
    usual = sc.certify(dense, sparse, methods="interval", rounding=True, **ball)
    with torch.no_grad():
        points = x + 1e-4 * (2 * torch.rand(2000, 20, generator=generator(5)) - 1)
        seen = (dense(points) - sparse(points)).abs().max()
    assert seen <= evaluated.bound and exact.bound < evaluated.bound <= 1.1 * exact.bound
    # Through |W| the errors grow, and without zonotopes nothing better is known.
    added = usual.problem.rounding_errors(usual.region).max()
    assert evaluated.bound - exact.bound < added / 5 and usual.bound > evaluated.bound


def test_auto_takes_zonotopes_where_passes_from_all_neurons_cost_too_much():
    dense, _ = network()
    x = torch.randn(1, 20, generator=generator(6), dtype=torch.float64)
    ball = {"around": x, "radius": 0.01, "restarts": 1}
    sparse = copy.deepcopy(dense)
    sparse[0].weight.data *= 1.001
    small = sc.certify(dense, sparse, **ball)
    assert "linear makes passes from all neurons" in small.skipped["zonotope"]
    large = sc.certify(dense, sparse, effort=20_000, **ball)
    assert large.method == "zonotope"
    assert "Name linear without zonotope" in large.skipped["linear"] and "affine" in large.skipped
    tiny = sc.certify(dense, sparse, effort=300, **ball)
    assert "20 symbols take" in tiny.skipped["zonotope"]
    named = sc.certify(dense, sparse, methods=["linear"], effort=20_000, **ball)
    assert set(named.bounds) == {"linear"}


def test_one_class_is_proven_by_zonotopes():
    dense, _ = network()
    x = torch.randn(1, 20, generator=generator(7), dtype=torch.float64)
    with torch.no_grad():
        f = dense(x)[0]
    near, other = copy.deepcopy(dense), copy.deepcopy(dense)
    near[0].weight.data *= 1 + 1e-6
    other[-1].bias.data[int(f.argmin())] += float(f.max() - f.min()) + 1
    claim = {"claim": "top-1", "methods": "zonotope", "effort": 20_000, "seconds": 30}
    for sparse, answer in ((near, "proven"), (other, "refuted")):
        cert = sc.certify(dense, sparse, around=x, radius=1e-4, **claim)
        assert cert.answer == answer


def test_directions_are_bounded_as_well_as_outputs():
    dense, sparse = network()
    x = torch.randn(1, 20, generator=generator(8), dtype=torch.float64)
    domain = ball_domain(x, 0.05)
    problem = problem_of(dense, sparse, x)
    proven = by_zonotopes(problem, domain)
    pair = proven.pair
    assert not proven.dropped
    toward = torch.randn(5, 3, generator=generator(9), dtype=torch.float64)
    ends = pair.directions(toward, problem.unit)
    points = x + 0.05 * (2 * torch.rand(500, 20, generator=generator(10)).double() - 1).round()
    with torch.no_grad():
        f, g = dense(points) @ toward.T, sparse(points) @ toward.T
    for k, values in enumerate((f, g, f - g)):
        assert bool(
            (values >= ends[2 * k] - 1e-9).all() and (values <= ends[2 * k + 1] + 1e-9).all()
        )
    eye = pair.directions(torch.eye(3, dtype=torch.float64), problem.unit)
    whole = torch.maximum(eye[5], -eye[4])
    assert torch.allclose(whole, pair.difference(problem.unit), rtol=1e-9)


def test_a_network_that_takes_too_long_is_left():
    dense, sparse = network()
    x = torch.zeros(1, 20, dtype=torch.float64)
    cert = sc.certify(
        dense, sparse, around=x, radius=0.1, methods=["interval", "zonotope"], seconds=1e-9
    )
    assert "time" in cert.skipped["zonotope"]


def test_windows_of_pools_and_joined_branches_share_symbols():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
            self.head = nn.Linear(6 * 9, 2)

        def forward(self, x):
            y = torch.relu(self.one(x))
            z = torch.cat([y, torch.relu(self.two(y) + y)], dim=1)
            return self.head(torch.nn.functional.max_pool2d(z, 2).flatten(1))

    g = generator(11, "zonotopes")
    dense = randomize(Net().double(), g)
    same = copy.deepcopy(dense)
    same.head.bias.data += 0.5
    x = torch.randn(1, 2, 6, 6, generator=g, dtype=torch.float64)
    # Exactly the shift at the end, unless a window has two leaders.
    assert bound_of(dense, same, x, 1e-6).bound == pytest.approx(0.5, rel=1e-6)
    sparse = pruned(dense, g)
    cert = bound_of(dense, sparse, x, 0.02)
    found = search_boxes(cert.problem, cert.domain, restarts=4, steps=10).per_output.max()
    assert found <= cert.bound <= 2 * found


def test_memory_that_held_something_else_changes_nothing(monkeypatch):
    dense = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2, padding=1)),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
    ).double()
    randomize(dense, generator(0))
    sparse = pruned(dense, generator(0))
    x = torch.randn(1, 1, 8, 8, generator=generator(1), dtype=torch.float64)
    clean = bound_of(dense, sparse, x, 0.01).per_box
    # So few at once that symbols of neighbouring inputs reach a window alone.
    monkeypatch.setattr(zonotope, "_BATCH", 128)
    monkeypatch.setattr(
        zonotope.Slabs, "empty", lambda _, like, shape: like.new_full(tuple(shape), math.nan)
    )
    assert torch.allclose(bound_of(dense, sparse, x, 0.01).per_box, clean, rtol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "hardswish"])
def test_generators_that_are_computed_anew_are_those_that_were_kept(kind, monkeypatch):
    g = generator(12, "zonotopes")
    make, shape = KINDS.get(kind, (hardswished, (2, 6, 6)))
    dense = randomize(make().double(), g)
    x = torch.randn(1, *shape, generator=g, dtype=torch.float64)
    problem = problem_of(dense, pruned(dense, g), x, ending=True)
    # Some at a time, which every value that reads them asks for in parts of its own.
    monkeypatch.setattr(zonotope, "_BATCH", 300)
    kept, anew = (
        propagate(
            problem.graph,
            Zonotopes(unit=2.0**-52, stored=stored),
            [problem.flow_input(ball_domain(x, 0.3))],
            problem.pair,
        )
        for stored in (math.inf, 0)
    )
    for one, other in zip(kept.all, anew.all, strict=True):
        assert isinstance(one.g, torch.Tensor) and (
            isinstance(other.g, Recomputed) or not one.numbers
        )
        assert torch.equal(one.symbols, other.symbols)
        rows = one.rows(one.symbols)
        assert torch.allclose(other.rows(one.symbols), rows, rtol=1e-9, atol=1e-12)
        at = torch.arange(one.c.numel())
        assert torch.allclose(other.columns(at), rows.flatten(1), rtol=1e-9, atol=1e-12)
        assert torch.allclose(other.spread, one.spread, rtol=1e-9, atol=1e-12)
        assert torch.allclose(other.e, one.e, rtol=1e-3, atol=1e-12)


def test_a_remainder_gets_symbols_only_in_generators_that_are_kept(monkeypatch):
    monkeypatch.setattr(zonotope, "_AGAIN", math.inf)

    class Watched(Zonotopes):
        seen = 0

        def _hold(self, which, node, y):
            self.seen += float(y.e.max()) > 1e-5 * float(y.spread.max())
            y = super()._hold(which, node, y)
            assert isinstance(y.g, Recomputed)
            return y

    dense, sparse = network(depth=30)
    x = torch.randn(1, 20, generator=generator(14), dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    flow = Watched(unit=2.0**-30, stored=0, alone=nodes_alone(problem.graph))
    propagate(problem.graph, flow, [problem.flow_input(ball_domain(x, 1e-6))], problem.pair)
    assert flow.seen


def test_remainders_keep_their_symbols_while_there_is_room():
    dense, sparse = network(depth=40)
    x = torch.randn(1, 20, generator=generator(14), dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    reach, counts = [], []
    for held in (0, 2**20):
        flow = Zonotopes(unit=2.0**-30, held=held, alone=nodes_alone(problem.graph))
        y = propagate(problem.graph, flow, [problem.flow_input(ball_domain(x, 1e-6))], problem.pair)
        reach.append(y.d.spread + y.d.e)
        counts.append(int(torch.isin(y.d.symbols, flow._rest_of(2)).sum()))
    assert counts[1] > counts[0]
    assert bool((reach[1] < reach[0]).all())


def hardswished() -> nn.Module:
    """Whose difference takes a part of what enters the neurons of f."""
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.Hardswish(), nn.Conv2d(3, 3, 3, stride=2)),
        *(nn.Hardswish(), nn.Flatten(), nn.Linear(12, 2)),
    )


def test_more_inputs_than_could_be_kept_get_a_symbol_each_where_their_maps_are_affordable(
    monkeypatch,
):
    dense, sparse = network()
    x = torch.randn(1, 20, generator=generator(13), dtype=torch.float64)
    usual = bound_of(dense, sparse, x, 0.01).bound
    # Half of the inputs would fit.
    monkeypatch.setattr(methods, "_ZONOTOPES", 10 * 20)
    few = bound_of(dense, sparse, x, 0.01)
    assert few.bound == pytest.approx(usual, rel=1e-9)
    # The outputs would fit, the layers before them not.
    problem, domain = problem_of(dense, sparse, x), ball_domain(x, 0.01)
    monkeypatch.setattr(methods, "_ZONOTOPES", 10)
    assert isinstance(by_zonotopes(problem, domain).pair.f.g, Recomputed)
    asked = by_zonotopes(replace(problem, symbols=40, shared={}), domain)
    assert isinstance(asked.pair.f.g, torch.Tensor)
    monkeypatch.setattr(methods, "_ZONOTOPES", 10 * 20)
    problem = replace(problem, effort=300)
    _, skipped = run_methods(problem, ball_domain(x, 0.01), ["interval", "zonotope"])
    assert "20 open inputs need a symbol each, 10 are allowed" in skipped["zonotope"]


def test_what_is_too_deep_to_be_computed_anew_is_refused(monkeypatch):
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

        def forward(self, x):
            for layer in self.maps:
                x = x + torch.relu(layer(x))
            return x

    g = generator(14, "skips")
    dense = randomize(Skips().double(), g)
    sparse = pruned(dense, g)
    x = torch.randn(1, 8, generator=g, dtype=torch.float64)
    problem, domain = problem_of(dense, sparse, x), ball_domain(x, 0.01)
    monkeypatch.setattr(methods, "_ZONOTOPES", 8)
    _, skipped = run_methods(problem, domain, ["interval", "zonotope"])
    assert "too deep to be computed anew" in skipped["zonotope"]
    # Where the symbols of all inputs can be kept, so can the few that remainders add.
    monkeypatch.setattr(methods, "_ZONOTOPES", 16 * 8)
    monkeypatch.setattr(zonotope, "_THREATENS", 0.0)
    held = by_zonotopes(replace(problem, shared={}), domain)
    assert len(held.pair.d.symbols) > 16
    assert isinstance(held.pair.d.g, torch.Tensor)


def test_remainders_get_symbols_only_where_no_skip_is_left():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            y = torch.relu(self.a(x))
            return torch.relu(self.c(torch.relu(self.b(y))) + y)

    graph = capture(Net(), torch.zeros(1, 4))
    bends = [n.name for n in graph.nodes if isinstance(n, Activation)]
    assert nodes_alone(graph) == {bends[0], bends[2]}


def small_pair(module, other, x, radius, **options):
    problem = replace(problem_of(module.double(), other.double(), x), **options)
    return by_zonotopes(problem, ball_domain(x, radius)).pair


def test_a_value_and_a_multiple_of_another_have_both_remainders():
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    f = replace(point(x), e=torch.tensor([[0.25, 0.5]], dtype=torch.float64))
    y = f.plus_at(torch.tensor([1]), torch.tensor([-3.0], dtype=torch.float64), f, 0.0, Slabs())
    assert y.c.tolist() == [[1.0, 4.0]] and y.e.tolist() == [[0.25, 2.0]]


@pytest.mark.parametrize(("z", "other", "kept"), [(3, -3, 0.5), (-3, 3, 0.25), (3, 5, 0.75)])
def test_a_difference_that_is_a_value_of_one_network_has_its_remainder(z, other, kept):
    """That is z where f is on and g is off, and −z' the other way around."""
    graph = capture(nn.ReLU(), torch.zeros(1, 1))
    node = next(n for n in graph.nodes if isinstance(n, Activation))
    f, g, d = (
        replace(
            point(torch.tensor([[float(c)]], dtype=torch.float64)),
            e=torch.tensor([[e]], dtype=torch.float64),
        )
        for c, e in ((z, 0.5), (other, 0.25), (z - other, 0.75))
    )
    flow = Zonotopes(unit=2.0**-53)
    flow.input(graph.inputs[0], (torch.zeros(1, 1),) * 2)
    y = flow.activation(node, Pair(f, g, d)).d
    assert float(y.c) == max(z, 0) - max(other, 0)
    assert float(y.e) >= kept


def test_what_weights_of_different_size_lose_in_their_difference_is_covered():
    one, tiny = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()
    one.weight.data.fill_(1.0)
    tiny.weight.data.fill_(2.0**-80)
    d = small_pair(one, tiny, torch.ones(1, 1, dtype=torch.float64), 0.0).d
    found = Fraction(float(d.c)) + Fraction(float(d.low))
    assert abs(found - (1 - Fraction(1, 2**80))) <= Fraction(float(d.e))


def test_a_difference_of_computed_weights_has_the_radii_of_both():
    net = weight_norm(nn.Linear(5, 3))
    x = torch.randn(1, 5, generator=generator(16))
    problem = problem_of(net, copy.deepcopy(net), x)
    pair = by_zonotopes(problem, ball_domain(x, 0.0)).pair
    assert bool((pair.f.e > 0).all())
    assert torch.allclose(pair.d.e, pair.f.e + pair.g.e, rtol=1e-6)


@pytest.mark.parametrize("symbols", [None, 8, 6])
def test_differences_at_corners_stay_within_with_any_number_of_symbols(symbols):
    g = generator(17, str(symbols))
    for seed in range(12):
        dense = randomize(
            nn.Sequential(
                *(nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (1, 2, 4)), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)),
            ).double(),
            g,
        )
        other = copy.deepcopy(dense)
        for p in other.parameters():
            p.data += (0.02, 0.3)[seed % 2] * torch.randn(p.shape, generator=g).double()
        x = torch.randn(1, 6, generator=g).double()
        pair = small_pair(dense, other, x, 0.5, symbols=symbols)
        points = x + 0.5 * (2 * torch.rand(4000, 6, generator=g).double() - 1)
        points[::2] = x + 0.5 * (points[::2] - x).sign()
        with torch.no_grad():
            seen = dense(points) - other(points)
        low, high = pair.d.ends(2.0**-53)
        assert bool(((seen >= low - 1e-12) & (seen <= high + 1e-12)).all())


def linear_then(weight, bias, *rest):
    layer = nn.Linear(1, len(weight)).double()
    layer.weight.data = torch.tensor(weight, dtype=torch.float64).unsqueeze(1)
    layer.bias.data = torch.tensor(bias, dtype=torch.float64)
    return nn.Sequential(layer, *rest)


def test_an_open_neuron_without_a_symbol_is_in_the_remainder_of_the_difference():
    dense, other = (linear_then([1.0], [bias], nn.ReLU()) for bias in (0.0, -10.0))
    d = small_pair(dense, other, torch.zeros(1, 1, dtype=torch.float64), 1.0, symbols=1).d
    low, high = d.ends(2.0**-53)
    # relu(x) − 0 on [−1, 1].
    assert float(low) <= 0 and float(high) >= 1


def test_an_entry_that_overtakes_the_leader_of_a_window_counts_in_the_difference():
    rest = nn.Unflatten(1, (1, 2)), nn.MaxPool1d(2), nn.Flatten()
    dense = linear_then([1.0, 0.0], [0.0, -3.0], *rest)
    other = linear_then([1.0, -1.0], [0.0, -0.5], *rest)
    d = small_pair(dense, other, torch.zeros(1, 1, dtype=torch.float64), 1.0).d
    low, high = d.ends(2.0**-53)
    # x − max(x, −x − 0.5) on [−1, 1].
    assert float(low) <= -1.5 and float(high) >= 0
