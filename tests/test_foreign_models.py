"""What is given in place of a plain float32 model outside of inference mode: answered or refused in
words, never an error from inside of torch.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import secateurs as sc
from invariance import check_invariance
from secateurs.errors import ArgumentError, SecateursError
from secateurs.ship.c_source import c_source

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


ASKED = {
    "capture": sc.capture,
    "path_norm": sc.path_norm,
    "path_norm_penalty": sc.path_norm_penalty,
    "path_costs": sc.path_costs,
    "path_metric": lambda m, x: sc.path_metric(m, m, x),
    "lifting": sc.paths.lifting,
    "liveness": sc.liveness,
    "lipschitz_bounds": lambda m, x: sc.lipschitz_bounds(m, m, x),
    "certify": lambda m, x: sc.certify(m, m, around=x, radius=0.1),
    "check_invariance": lambda m, x: check_invariance(m, "magnitude", x),
    "normalize_": sc.normalize_,
    "rescale_random_": sc.proof.rescale_random_,
    "macs": sc.macs,
    "compact": sc.compact,
    "accelerate": lambda m, x: sc.accelerate(m, x, tune="guess", keep="always"),
    "c_source": c_source,
    "prune_channels_": lambda m, x: sc.prune_channels_(m, x, channels=0.5),
    "prune_": lambda m, x: sc.prune_(m, "magnitude", sparsity=0.5),
    "score": lambda m, x: sc.score(m, "magnitude"),
    "sparsity": lambda m, x: sc.sparsity_report(m),
    "apply_": lambda m, x: sc.apply_(m, {"0.weight": torch.ones(6, 4).bool()}),
    "diagnose": lambda m, x: sc.diagnose(m),
}


def refused_or_answered(name, model, x=X):
    try:
        ASKED[name](model, x)
    except SecateursError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ASKED)
def test_a_path_is_no_model(name):
    with pytest.raises(ArgumentError, match="model is 'm.pt', not a torch.nn.Module"):
        ASKED[name]("m.pt", X)


def test_a_path_is_no_model_for_files_either(tmp_path):
    for ask in (
        lambda: sc.export("m.pt", tmp_path / "m.onnx", X),
        lambda: sc.save_sparse("m.pt", tmp_path / "m.sparse"),
        lambda: sc.measure("m.pt", X),
    ):
        with pytest.raises(ArgumentError, match="m.pt|forms is a str"):
            ask()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ASKED)
def test_inference_mode_changes_no_answer(name):
    model = net()
    with torch.inference_mode():
        assert refused_or_answered(name, model, X.clone()) == ""


@pytest.mark.parametrize("name", ASKED)
def test_weights_made_in_inference_mode_are_refused_outside(name):
    with torch.inference_mode():
        model = net()
    text = refused_or_answered(name, model)
    assert not text or "inference" in text


def test_a_certificate_in_inference_mode_is_the_same():
    f, g = net(), net()
    g[0].weight.data[0] = 0
    plain = sc.certify(f, g, around=X, radius=0.1, restarts=0).bound
    with torch.inference_mode():
        inside = sc.certify(f, g, around=X.clone(), radius=0.1, restarts=0).bound
        box = sc.certify(f, g, box=(X - 0.1, X + 0.1), restarts=0).bound
    assert inside == plain and box == pytest.approx(plain, rel=1e-5)


def stored_in(kind):
    model = net()
    weight = model[0].weight.detach()
    made = {
        "float8": lambda: weight.to(torch.float8_e4m3fn),
        "coo": lambda: weight.relu().to_sparse(),
        "csr": lambda: weight.relu().to_sparse_csr(),
    }[kind]()
    model[0].weight = nn.Parameter(made, requires_grad=False)
    return model


@pytest.mark.parametrize("kind", ["float8", "coo", "csr"])
@pytest.mark.parametrize("name", ASKED)
def test_other_ways_to_store_weights_are_refused_by_name(name, kind):
    text = refused_or_answered(name, stored_in(kind))
    if text:
        assert "0.weight" in text and ("float8" in text or "layout" in text), text


@pytest.mark.parametrize("kind", ["float8", "coo", "csr"])
def test_pruning_says_how_to_convert(kind):
    model = stored_in(kind)
    with pytest.raises(SecateursError, match=r"bfloat16\(\)|to_dense\(\)"):
        sc.prune_(model, "magnitude", sparsity=0.5)


class PerChannel(nn.Module):
    """Weights on a grid of their own for every row, as quantisation-aware training sees them."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("scale", (weight.abs().amax(1) / 127).detach())
        self.register_buffer("zero", torch.zeros(len(weight), dtype=torch.int32))

    def forward(self, weight):
        return torch.fake_quantize_per_channel_affine(weight, self.scale, self.zero, 0, -127, 127)


def per_channel(model):
    model = copy.deepcopy(model)
    for layer in (model[0], model[2]):
        parametrize.register_parametrization(layer, "weight", PerChannel(layer.weight))
    return model


def test_fake_quantisation_per_channel_is_certified():
    dense = net()
    quantised = per_channel(dense)
    certificate = sc.certify(dense, quantised, around=X, radius=0.5)
    x = X + 0.5 * torch.randn(500, 1, 4).clamp(-1, 1)
    with torch.no_grad():
        true = float((dense(x) - quantised(x)).abs().max())
    assert 0 < true <= certificate.bound <= 4 * true


def test_halves_go_where_the_models_own_precision_puts_them():
    """In float64 half of the entries would fall on the other side of a step."""
    dense = net()
    scale = torch.tensor(0.1)  # no float64: 0.1f · 2.5 lies above the half
    dense[0].weight.data = ((torch.arange(24).reshape(6, 4) % 7) + 0.5) * scale
    quantised = per_channel(dense)
    for part in quantised.modules():
        if isinstance(part, PerChannel):
            part.scale.fill_(0.1)
    graph = sc.capture(quantised, X)
    state = graph.state(quantised)
    effective = next(node.weight(state) for node in graph.nodes if getattr(node, "weight", None))
    assert torch.equal(effective.float(), quantised[0].weight.detach())


@pytest.mark.parametrize("name", ASKED)
def test_training_for_quantisation_is_refused_or_left_as_it_is(name):
    model = net().train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    model = torch.ao.quantization.prepare_qat(model)
    model(torch.randn(8, 4))
    model.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    text = refused_or_answered(name, model)
    weights_alone = (
        "prune_",
        "score",
        "sparsity",
        "apply_",
        "diagnose",
        "accelerate",
    )
    assert text or name in (*weights_alone, "check_invariance")
    after = model.state_dict()
    if name != "prune_":
        assert all(torch.equal(after[k], v) for k, v in before.items())
