"""What is chosen on a GPU is what a processor chooses, without launches and waits for every piece.

The budgets are counted on the pretend GPU and may only fall.
"""

import pytest
import torch
from torch import nn

import secateurs as sc
from masks.grid import SHAPES, equal, scores
from secateurs.errors import ArgumentError, ScoreError
from secateurs.masks import PATTERNS, SCOPES, select
from secateurs.masks.pieces import count_each
from secateurs.masks.topk import largest, largest_of_each
from secateurs.optim.holding import _digest

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
PRETENDED = torch.cuda.get_device_name() == "pretend"
GIVEN = [
    (0.05, torch.float32, "drawn", "none"),
    (0.25, torch.bfloat16, "tied", "all"),
    (0.4, torch.float16, "tied", "one"),
    (0.2, torch.float64, "drawn", "all"),
    (0.3, torch.float32, "tied", "none"),
]
WAYS = [
    (scope, pattern)
    for scope in SCOPES.names()
    for pattern in PATTERNS.names()
    if scope != "row" or pattern == "unstructured"
    # Spectra take a second, and see no pattern.
    if scope != "spectral" or pattern in ("unstructured", "2:4")
]


def there(tensors):
    return {name: tensor.cuda() for name, tensor in (tensors or {}).items()}


def here(tensors):
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def given(kind, dtype=torch.float32):
    tied = {n: (s * 4).round().to(dtype) for n, s in scores().items()}
    return scores(dtype) if kind == "drawn" else tied


def earlier(kind):
    g = torch.Generator().manual_seed(4)
    masks = {name: torch.rand(shape, generator=g) < 0.7 for name, shape in SHAPES.items()}
    return {"none": None, "all": masks, "one": {"b": masks["b"]}}[kind]


@pytest.mark.parametrize(("scope", "pattern"), WAYS)
def test_the_masks_are_those_of_a_processor(scope, pattern):
    for density, dtype, kind, within in GIVEN:
        values, masks = given(kind, dtype), earlier(within)
        options = {"scope": scope, "pattern": pattern, "density": density}
        expected = select(values, weights=values, within=masks, **options)
        found = select(there(values), weights=there(values), within=there(masks), **options)
        assert all(mask.is_cuda for mask in found.values())
        assert equal(here(found), expected), (dtype, kind, within)


@pytest.mark.parametrize("pattern", ["unstructured", "filter"])
def test_scores_of_several_devices_are_ranked_together(pattern):
    for within in ("none", "all"):
        values, masks = given("tied"), earlier(within)
        expected = select(values, within=masks, pattern=pattern, density=0.3)
        for moved in ("a", "b"):
            some = values | there({moved: values[moved]})
            found = select(some, within=masks, pattern=pattern, density=0.3)
            assert {n: m.device for n, m in found.items()} == {n: s.device for n, s in some.items()}
            assert equal(here(found), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_not_finite_are_refused_by_name(bad):
    values = given("drawn")
    values["b"][0, 1] = bad
    with pytest.raises(ScoreError) as expected:
        select(values, sparsity=0.5)
    with pytest.raises(ScoreError) as found:
        select(there(values), sparsity=0.5)
    assert str(found.value) == str(expected.value)
    negative = {"a": -torch.ones(3)}
    with pytest.raises(ScoreError, match="negative"):
        select(there(negative), sparsity=0.5, how="sample")


def test_more_than_there_are_is_refused():
    score, mask = {"a": torch.rand(9).cuda()}, {"a": torch.arange(9).cuda() < 4}
    with pytest.raises(ArgumentError, match="rank 10 was requested among 9"):
        largest(score, 10)
    with pytest.raises(ArgumentError, match="rank 5 was requested among 4"):
        largest(score, 5, within=mask)
    with pytest.raises(ArgumentError, match="rank 5 was requested among 4"):
        largest_of_each(score, {"a": 5}, within=mask, room={"a": 4})


def test_pruning_is_that_of_a_processor():
    torch.manual_seed(0)
    for options in (
        {"sparsity": 0.9},
        {"sparsity": 0.9, "scope": "layer"},
        {"sparsity": 0.6, "rounds": 3},
        {"sparsity": 0.5, "scope": "row", "rounds": 2},
        {"pattern": "2:4"},
        {"pattern": "4x4", "sparsity": 0.5},
    ):
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        with torch.no_grad():
            model[0].weight[:, :2] = 0
        twin = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        twin.load_state_dict(model.state_dict())
        twin = twin.cuda()
        expected, found = (sc.prune_(m, "magnitude", **options) for m in (model, twin))
        assert equal(here(found.masks), dict(expected.masks)), options
        assert found.as_dict() == expected.as_dict()
        assert equal(here(twin.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("kind", ["rigl", "set", "ac/dc"])
def test_masks_change_as_on_a_processor(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.Linear(30, 10))
    twin = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.Linear(30, 10))
    twin.load_state_dict(model.state_dict())
    first = select({n: p for n, p in model.named_parameters() if p.ndim > 1}, density=0.3)
    trained = []
    for network in (model, twin.cuda()):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        options = {"steps": 24, "every": 3}
        if kind == "ac/dc":
            method = sc.optim.ACDC(network, optimizer, density=0.3, **options)
        else:
            make = {"rigl": sc.optim.RigL, "set": sc.optim.SET}[kind]
            generator = torch.Generator().manual_seed(1)
            method = make(network, optimizer, masks=first, generator=generator, **options)
        trained.append((network, optimizer, method))
    for step in range(16):
        for network, optimizer, _ in trained:
            draw = torch.Generator().manual_seed(step)
            for p in network.parameters():
                # Rounded, so that many are equal.
                drawn = (4 * torch.randn(p.shape, generator=draw)).round() / 64
                p.grad = drawn.to(p.device)
            optimizer.step()
        masks, found = (method.masks for *_, method in trained)
        assert equal(here(found), masks), step
        assert equal(here(twin.state_dict()), dict(model.state_dict())), step


def test_digests_of_masks_are_those_of_a_processor():
    for shape in ((0,), (7,), (8,), (3, 5), (40, 33)):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
        assert _digest(mask.cuda()) == _digest(mask)
        assert _digest(mask.cuda()[::2]) == _digest(mask[::2])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("scope", ["global", "layer", "row"])
def test_booleans_that_are_no_ones_are_true(device, scope):
    """Earlier masks that are views of bytes: they are counted, hashed, chosen within and held."""
    plain = {name: mask.to(device) for name, mask in earlier("all").items()}
    views = {n: (m.to(torch.uint8) * 255).view(torch.bool) for n, m in plain.items()}
    values = {name: score.to(device) for name, score in scores().items()}
    assert count_each(views) == count_each(plain)
    assert [_digest(mask) for mask in views.values()] == [_digest(m) for m in plain.values()]
    found = select(values, density=0.3, scope=scope, within=views)
    assert equal(found, select(values, density=0.3, scope=scope, within=plain))
    layer = nn.Conv2d(4, 8, 3, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with sc.hold(layer, {"weight": views["a"]}, optimizer):
        layer(torch.ones(1, 4, 5, 5, device=device)).sum().backward()
        optimizer.step()
    assert torch.equal(layer.weight != 0, plain["a"])


# What it costs.


COSTS = {
    "one layer": (1, {"density": 0.1}, 36, 2),
    "layers": (20, {"density": 0.1}, 39, 2),
    "magnitudes": (20, {"density": 0.1, "absolute": True}, 35, 2),
    "layers, each": (20, {"density": 0.1, "scope": "layer"}, 51, 1),
    "rows of one layer": (1, {"density": 0.1, "scope": "row"}, 5, 1),
    "rows of layers": (20, {"density": 0.1, "scope": "row"}, 63, 1),
    "2:4 of one layer": (1, {"pattern": "2:4"}, 15, 2),
    "2:4 of layers": (20, {"pattern": "2:4"}, 226, 2),
    "blocks": (1, {"pattern": "4x4", "density": 0.1}, 23, 5),
}


@pytest.mark.skipif(not PRETENDED, reason="counted on the pretend GPU alone")
@pytest.mark.parametrize("name", COSTS)
def test_a_selection_stays_within_its_budget(name):
    count, options, launches, waits = COSTS[name]
    torch.manual_seed(0)
    values = {str(i): torch.randn(400 // count, 1000).cuda() for i in range(count)}
    spent(lambda: select(values, **options), launches, waits)


@pytest.mark.skipif(not PRETENDED, reason="counted on the pretend GPU alone")
def test_masks_and_pruning_stay_within_their_budgets():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(200, 100, bias=False) for _ in range(20)]).cuda()
    values = {name: p.detach() for name, p in model.named_parameters()}
    within = {name: value > 0 for name, value in values.items()}
    spent(lambda: select(values, density=0.1, within=within), 46, 3)
    # Three launches a layer: its magnitudes, its mask written and applied.
    spent(lambda: sc.prune_(model, "magnitude", sparsity=0.9), 89, 5)
    # Rows that may keep fewer are counted with one more wait, for all layers together.
    spent(lambda: select(values, density=0.1, scope="row", within=within), 587, 3)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(31)]).cuda()
    assert len(list(model.parameters())) == 62
    spent(lambda: sc.prune_(model, "magnitude", sparsity=0.9), 111, 5)


def spent(call, launches, waits):
    import pretend

    with pretend.counted() as counts:
        call()
    assert counts.launched <= launches, counts.launches
    assert counts.waited <= waits, counts.waits
    assert counts.to_host < 10_000
