"""What a GPU must do as a processor does: only where there is one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import secateurs as sc
from secateurs.base.gpu import _table as table
from secateurs.base.gpu import has_kernels
from secateurs.errors import TrainingError
from secateurs.optim import HAM, DGating, Factorized, FactorizedSGD, PowerPropagation, hold
from secateurs.optim.factorized.maths import StepRule
from secateurs.optim.factorized.step import AllAtOnce
from secateurs.proof import METHODS, lipschitz_bounds, recheck, statistical
from secateurs.scores import SCORES, score
from secateurs_lab.train import grid

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
PRETENDED = torch.cuda.get_device_name() == "pretend"
# A card would round what it convolves to ten bits.
torch.backends.cudnn.allow_tf32 = False


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def digits(count=256):
    """Images of ten classes, that a network can tell apart."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 10
    return torch.rand(10, 1, 8, 8, generator=draw)[y] + torch.rand(
        count, 1, 8, 8, generator=draw
    ), y


def pair():
    """Equal networks on both devices, and a batch for each."""
    model, batch = convolutions(), digits(64)
    return (model, batch), (
        copy.deepcopy(model).cuda(),
        tuple(x.cuda() for x in batch),
    )


@pytest.mark.parametrize("name", SCORES.names())
def test_a_score_is_the_same_on_both_devices(name):
    found = []
    for model, batch in pair():
        try:
            scores = score(
                model,
                name,
                batch=batch,
                example=batch[0][:1],
                loss=F.cross_entropy,
                generator=torch.Generator().manual_seed(0),
            )
        except sc.errors.SecateursError as error:
            pytest.skip(str(error))
        found.append({key: value.double().cpu() for key, value in scores.items()})
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize("how", ["topk", "sample"])
def test_masks_stay_on_the_device_and_hold(how):
    model = convolutions().cuda()
    x, y = (tensor.cuda() for tensor in digits())
    recipe = sc.Recipe(score="magnitude", density=0.2, how=how)
    masks = sc.prune_(model, recipe, generator=torch.Generator().manual_seed(0)).masks
    assert {mask.device.type for mask in masks.values()} == {"cuda"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with hold(model, masks, optimizer):
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask].any()
    assert (model(x).argmax(1) == y).float().mean() > 0.2


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("base", ["AdamW", "SGD"])
def test_a_base_moves_factors_as_on_the_cpu(base, depth):
    """Past the step at which states of dead weights are cleared."""
    found = []
    for model, (x, y) in pair():
        optimizer = Factorized(
            model.parameters(),
            base=getattr(torch.optim, base),
            base_kwargs={"lr": 0.02},
            depth=depth,
            strength=0.05,
            init="pretrained",
            zeros="frozen",
            freeze=1e-4,
        )
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        found.append([p.detach().cpu() for p in model.parameters()])
    assert any((one == 0).any() for one in found[0])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


STRANGE = (float("nan"), float("inf"), -float("inf"), -0.0, -1e-30, 1.0, 1e-45, 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_masks_leave_the_bits_that_they_leave_on_the_cpu(dtype, layout):
    """Of any values, in weights, gradients and states; also after the masks have changed."""
    draw = torch.Generator().manual_seed(0)
    found = []
    first, second = torch.rand(2, 8, 4, 3, 2, generator=draw) < 0.5
    for device in ("cpu", "cuda"):
        layer = nn.Conv2d(4, 8, (3, 2)).to(dtype=dtype, memory_format=layout).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9, foreach=True)
        held, seen = hold(layer, {"weight": first}, optimizer), []
        for step in range(3):
            if step == 2:
                held.change({"weight": second})
            with torch.no_grad():
                layer.bias.zero_()
                layer.weight.copy_(torch.tensor(STRANGE * 24).to(dtype).view(8, 4, 3, 2))
            layer.weight.grad = torch.ones_like(layer.weight) * layer.weight.detach()
            optimizer.step()
            state = optimizer.state[layer.weight]["momentum_buffer"]
            seen += [each.detach().clone() for each in (layer.weight, layer.weight.grad, state)]
        found.append([each.cpu().contiguous() for each in seen])
    # What torch's own step makes of kept ones has other bits on a card: of a NaN, and of bfloat16.
    gap = 0.05 if dtype == torch.bfloat16 else 0.0
    for step, (one, other) in enumerate(zip(*found, strict=True)):
        mask = (first if step < 6 else second).repeat_interleave(dtype.itemsize, -1)
        torch.testing.assert_close(one, other, rtol=gap, atol=0.0, equal_nan=True)
        for each in (one, other):
            assert not each.view(torch.uint8).reshape(mask.shape)[~mask].any()


def test_a_change_of_masks_keeps_their_memory():
    """A captured graph goes on reading it."""
    layer = nn.Linear(6, 5).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    held = hold(layer, {"weight": torch.rand(5, 6) < 0.5}, optimizer)
    keep = held._keeps["weight"]
    packed = keep._packed
    assert (packed is not None) == has_kernels(torch.device("cuda", 0))

    def places():
        return [bits.data_ptr() for bits in (*keep._bits, *([packed.words] if packed else []))]

    at = places()
    held.change({"weight": torch.rand(5, 6) < 0.5})
    assert at and places() == at and keep._packed is packed


@pytest.mark.parametrize("name", ["ham", "d-gating", "power"])
def test_a_method_steps_as_on_the_cpu(name):
    makes = {
        "ham": lambda m, o: HAM(m, o, alpha=20.0, beta=0.1),
        "d-gating": lambda m, o: DGating(m, o, strength=0.02),
        "power": lambda m, o: PowerPropagation(m, o, alpha=2.0),
    }
    weights = []
    for model, (x, y) in pair():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)
        method = makes[name](model, optimizer)
        for step in range(4):
            if step == 2:  # as somebody prunes who knows nothing of the method
                model[0].weight.data[0] = 0
                model[5].weight.data[1] = 0.5
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        method.release()
        weights.append([p.detach().cpu() for p in model.parameters()])
    for one, other in zip(*weights, strict=True):
        # Such an α lets weights grow to hundreds, and what rounding does with them.
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("init", ["dwf", "root"])
def test_factorized_steps_are_those_of_the_cpu(depth, init):
    weights = []
    for model, batch in pair():
        optimizer = FactorizedSGD(
            model.parameters(),
            lr=0.1,
            depth=depth,
            strength=1e-3,
            init=init,
            generator=torch.Generator().manual_seed(0),
        )
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
        weights.append([p.detach().cpu() for p in model.parameters()])
    # The last one is on the device.
    movers = [type(mover).__name__ for _, mover, _ in optimizer._route._together]
    assert movers == ["WholeStep" if has_kernels(torch.device("cuda", 0)) else "AllAtOnce"]
    for here, there in zip(*weights, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-2, atol=1e-4)


def test_a_grid_of_strengths_is_that_of_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        draw = torch.Generator().manual_seed(1)
        batches = [(torch.randn(32, 8, generator=draw), torch.arange(32) % 3) for _ in range(20)]
        there = [(x.to(device), y.to(device)) for x, y in batches]
        runs = grid(
            model.to(device),
            F.cross_entropy,
            there,
            strengths=(1e-3, 1e-2),
            seeds=(0, 1),
            lr=0.1,
        )
        found.append([one.loss for one in runs])
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_a_compacted_network_is_the_same_function():
    model = convolutions().cuda().eval()
    with torch.no_grad():
        model[0].weight[:3] = 0
        model[0].bias[:3] = 0
        model[1].weight[:3] = 0
        model[1].bias[:3] = 0
    x = torch.rand(4, 1, 8, 8, device="cuda")
    small = sc.compact(model, x)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


def test_path_norms_and_certificates_are_those_of_the_cpu():
    (here, batch), (there, moved) = pair()
    norms = [sc.path_norm(model.eval(), x[:1]) for model, (x, _) in ((here, batch), (there, moved))]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    pruned = copy.deepcopy(there)
    sc.prune_(pruned, sc.Recipe(score="magnitude", density=0.9))
    proof = sc.certify(there, pruned, around=moved[0][:4], radius=1e-3)
    with torch.no_grad():
        gap = (there(moved[0][:4]) - pruned(moved[0][:4])).abs().max()
    assert proof.bound >= float(gap)


@pytest.mark.parametrize("entries", [1000, 1_000_000])
def test_a_selection_on_the_device_is_that_of_the_cpu(entries):
    """Exact, ties by position included."""
    draw = torch.Generator().manual_seed(0)
    scores = {name: (torch.rand(entries, generator=draw) * 512).round() for name in "abc"}
    there = sc.select({name: value.cuda() for name, value in scores.items()}, density=0.1)
    for name, mask in sc.select(scores, density=0.1).items():
        assert torch.equal(there[name].cpu(), mask)


@pytest.mark.skipif(PRETENDED, reason="the pretend GPU captures nothing")
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_captured_update_is_the_update(depth):
    """All parameters in one launch: a CUDA graph of the foreach kernels."""
    found = []
    for capture in (False, True):
        model = convolutions().cuda()
        optimizer = FactorizedSGD(model.parameters(), lr=0.1, momentum=0.9, depth=depth)
        states = [optimizer.state[p] for p in model.parameters()]
        weights = [p.detach() for p in model.parameters()]
        mover = AllAtOnce(weights, [s["factors"] for s in states], [s["momentum"] for s in states])
        grads = [torch.zeros_like(w) for w in weights]
        rule = StepRule(lr=0.1, momentum=0.9, decay=1e-3)

        @torch.no_grad()
        def step(mover=mover, grads=grads, rule=rule):
            mover.step_(grads, rule, flush=False)

        graph = torch.cuda.CUDAGraph()
        step()  # gradients of zero: decay alone, in both
        if capture:
            with torch.cuda.graph(graph):
                step()
        for number in range(5):
            for grad in grads:
                grad.fill_(0.01 * (number + 1))
            graph.replay() if capture else step()
        found.append([w.cpu() for w in weights])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.skipif(PRETENDED, reason="the pretend GPU captures nothing")
def test_a_captured_step_follows_the_masks():
    """Also after they have changed, and after other tensors have taken the memory of tables."""
    layer = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, foreach=True)
    first, second = torch.rand(2, 64, 64, device="cuda") < 0.5
    held = hold(layer, {"weight": first}, optimizer)
    layer.weight.grad, layer.bias.grad = torch.ones(64, 64).cuda(), torch.ones(64).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    table.cache_clear()
    kept = [torch.full((64,), 1 << 40, device="cuda") for _ in range(200)]
    held.shrink({"weight": first & second})
    for _ in range(3):
        layer.weight.grad.fill_(1.0)
        graph.replay()
    torch.cuda.synchronize()
    assert kept and not layer.weight[~(first & second)].any()
    assert layer.weight[first & second].all()


def test_certificates_of_a_batch_are_those_of_the_cpu():
    (here, (x, _)), (there, (moved, _)) = pair()
    bounds = []
    for model, points in ((here.eval(), x), (there.eval(), moved)):
        pruned = copy.deepcopy(model)
        sc.prune_(pruned, sc.Recipe(score="magnitude", density=0.9))
        bounds.append(sc.certify(model, pruned, around=points[:32], radius=1e-3).bound)
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-4)


def certified(model, points, labels, **options):
    """A certificate of this network and its pruned copy, and what it says of the points."""
    pruned = copy.deepcopy(model)
    sc.prune_(pruned, sc.Recipe(score="magnitude", density=0.9))
    found = sc.certify(model, pruned, generator=torch.Generator().manual_seed(0), **options)
    kept = found.certified_share(points, labels, whole_ball="linear" in found.bounds)
    again = recheck(found.to_json(), model, pruned)
    assert again.holds, again
    return found, kept


@pytest.mark.parametrize("methods", METHODS.names())
def test_every_method_certifies_convolutions_as_on_the_cpu(methods):
    found = []
    for model, (x, y) in pair():
        domain = {"around": x[:2], "radius": 1e-3}
        # The models' own evaluation as well, and the numbers that batch norms compute.
        options = {"methods": methods, "rounding": True if methods == "linear" else "auto"}
        # The search is one for all methods.
        options["restarts"] = 5 if methods == "interval" else 1
        found.append(certified(model.eval(), x[:2], y[:2], **domain, **options))
    (here, kept), (there, moved) = found
    assert there.bounds == pytest.approx(here.bounds, rel=1e-4)
    assert there.lower_bound == pytest.approx(here.lower_bound, rel=1e-2, abs=1e-6)
    assert moved == kept


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("dense", {"target": 0.99}),
        ("dense", {"claim": "top-1"}),
        ("convolutions", {"target": 0.99, "methods": "linear", "restarts": 1}),
    ],
)
def test_boxes_are_split_as_on_the_cpu(network, options):
    """Into parts, for a target below the bound and for one top class."""
    found, whole = [], None
    for model, (x, y) in pair():
        x = x[: 2 if network == "dense" else 1]
        if network == "dense":
            x, model = x.flatten(1)[:, :54], model[5:]
        domain = {"around": x, "radius": 0.1}
        asked = dict(options)
        if "target" in asked:
            if whole is None:
                without = asked | {"target": None}
                whole = certified(model.eval(), x, y[: len(x)], **domain, **without)[0].bound
            asked["target"] *= whole
        found.append(certified(model.eval(), x, y[: len(x)], **domain, **asked)[0])
    assert found[1].answer == found[0].answer
    assert found[1].bound == pytest.approx(found[0].bound, rel=1e-3)


def test_lipschitz_bounds_are_those_of_the_cpu():
    found = []
    for model, (x, _) in pair():
        pruned = copy.deepcopy(model.eval())
        sc.prune_(pruned, sc.Recipe(score="magnitude", density=0.9))
        found.append(lipschitz_bounds(model, pruned, x[:1]))
    for name in ("lemma E.1", "theorem 3.1"):
        assert found[1][name].value == pytest.approx(found[0][name].value, rel=1e-4)


def test_predictions_are_compared_on_the_device():
    found = []
    for model, data in pair():
        pruned = copy.deepcopy(model.eval())
        sc.prune_(pruned, sc.Recipe(score="magnitude", density=0.9))
        found.append(statistical(model, pruned, data=data))
    assert found[1].largest == pytest.approx(found[0].largest, rel=1e-4)
    assert str(found[1]) == str(found[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_of_two_in_four_give_the_same_and_are_not_slower(dtype, caplog):
    torch.manual_seed(0)
    width = 128 if PRETENDED else 4096
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()
    sc.prune_(model, "magnitude", pattern="2:4")
    model = model.to(dtype).eval()
    x = torch.randn(1024, width, device="cuda", dtype=dtype)
    made = sc.accelerate(model, x)
    with torch.inference_mode():
        gap = (made(x) - model(x)).abs().max() / model(x).abs().max()
    assert float(gap) < 0.05
    # Either some layer gained, or a line says why not.
    assert made is not model or "no gain" in caplog.text


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_of_scattered_zeros_give_the_same(dtype, batch, caplog):
    torch.manual_seed(0)
    width = 128 if PRETENDED else 4096
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()
    sc.prune_(model, "magnitude", sparsity=0.9, scope="uniform")
    model = model.to(dtype).eval()
    x = torch.randn(batch, width, device="cuda", dtype=dtype)
    timed = sc.accelerate(model, x)
    assert hasattr(timed, "report") or "no gain" in caplog.text
    if not has_kernels(x.device):
        return
    made = sc.accelerate(model, x, tune="guess", keep="always")
    assert [layer.ways[0].partition(";")[0] for layer in made.report.layers] == ["lists"] * 2
    with torch.inference_mode():
        gap = (made(x) - model(x)).abs().max() / model(x).abs().max()
    assert float(gap) < 0.05


@pytest.mark.parametrize("options", [{}, {"pattern": "2:4"}, {"scope": "row"}, {"how": "sample"}])
def test_masks_on_the_processor_bound_scores_on_the_card(options):
    drawn = torch.Generator().manual_seed(0)
    scores = {"w": torch.rand(8, 16, generator=drawn)}
    within = {"w": torch.rand(8, 16, generator=drawn) < 0.6}
    there = {"w": scores["w"].cuda()}
    amount = {} if "pattern" in options else {"sparsity": 0.7}
    found = sc.select(there, within=within, **amount, **options)
    assert not (found["w"].cpu() & ~within["w"]).any()
    if options.get("how") != "sample":
        expected = sc.select(scores, within=within, **amount, **options)
        assert torch.equal(found["w"].cpu(), expected["w"])
    model = convolutions().cuda()
    masks = {"5.weight": torch.rand(model[5].weight.shape, generator=drawn) < 0.5}
    pruned = sc.prune_(model, "magnitude", sparsity=0.8, where="5.weight", within=masks)
    assert not (pruned.masks["5.weight"].cpu() & ~masks["5.weight"]).any()


def test_no_method_steps_while_a_graph_is_captured(monkeypatch):
    layer = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = HAM(layer, optimizer)
    layer.weight.grad = torch.ones_like(layer.weight)
    before = layer.weight.detach().clone()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TrainingError, match="HAM counts its steps, which a captured CUDA graph"):
        optimizer.step()
    monkeypatch.undo()
    assert torch.equal(layer.weight, before) and method.iteration == 0


def test_passes_may_be_captured_before_the_first_step(monkeypatch):
    """`hold` looks at the second one whether weights came back, which would wait for the device."""
    layer = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    held = sc.hold(layer, {"weight": torch.eye(4, dtype=torch.bool)}, optimizer)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with monkeypatch.context() as watched:
        watched.setattr(held, "_alive", lambda: pytest.fail("looked"))
        held._watcher._alive = held._alive
        for _ in range(3):
            layer(torch.ones(2, 4, device="cuda")).sum().backward()
    monkeypatch.undo()
    optimizer.step()
    assert torch.equal(layer.weight.detach() != 0, held.masks["weight"])
