"""What is written is what is read, to the bit, and written again it is the same file."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn.utils import prune

from files.random_models import Holder, random_state
from secateurs.errors import ArgumentError, ParameterError
from secateurs.files import load_sparse, read_sparse, save_sparse, unpack_sparse


def bits(tensor):
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.contiguous().reshape(-1).view(torch.uint8) if real.numel() else torch.zeros(0)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("block", range(10))
def test_save_load_save_is_byte_identical(block, tmp_path):
    """200 random models in ten blocks."""
    for seed in range(20 * block, 20 * block + 20):
        state, first, second = (
            random_state(seed),
            tmp_path / "a.safetensors",
            tmp_path / "b.safetensors",
        )
        save_sparse(state, first, notes={"seed": str(seed)}, certificate={"bound": 1.5})
        file = read_sparse(first)
        assert set(file.state) == set(state)
        assert all(same(file.state[name], value) for name, value in state.items()), seed
        save_sparse(file.state, second, notes=file.notes, certificate=file.certificate)
        assert first.read_bytes() == second.read_bytes(), seed
        holder = Holder({name: torch.zeros_like(value) for name, value in state.items()})
        save_sparse(Holder(state), first)
        assert load_sparse(first, into=holder) is holder
        assert all(
            same(holder.state_dict()[name.replace(".", "_")], value)
            for name, value in state.items()
        )


def network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    for module in (model[0], model[4]):
        module.weight.data[torch.rand_like(module.weight) < 0.8] = 0
    return model


def test_a_model_is_loaded_in_place_under_its_own_keys(tmp_path):
    path, model, fresh = tmp_path / "m.safetensors", network(), network()
    sizes = save_sparse(model, path)
    for parameter in fresh.parameters():
        parameter.data.fill_(7)
    assert load_sparse(path, into=fresh) is fresh
    assert all(
        same(a, b)
        for a, b in zip(fresh.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert sizes.bytes == path.stat().st_size
    assert sizes == read_sparse(path).sizes
    assert sizes.entries == sum(value.numel() for value in model.state_dict().values())
    assert sizes.kept == sum(int(value.count_nonzero()) for value in model.state_dict().values())


def test_the_file_is_safetensors_and_its_reader_opens_it(tmp_path):
    path = tmp_path / "m.safetensors"
    save_sparse(network(), path)
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["secateurs.sparse/3"]


def test_equal_models_give_equal_bytes(tmp_path):
    for name in "ab":
        save_sparse(network(), tmp_path / name, notes={"z": "1", "a": name[:0]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight


def test_tied_parameters_are_written_once_and_stay_tied(tmp_path):
    path, model = tmp_path / "m.safetensors", Tied()
    save_sparse(model, path)
    assert read_sparse(path).ties == {"second.weight": "first.weight"}
    loaded = load_sparse(path, into=Tied())
    assert loaded.second.weight is loaded.first.weight
    assert torch.equal(loaded.first.weight, model.first.weight)


def test_a_tied_model_refuses_two_different_tensors(tmp_path):
    path = tmp_path / "m.safetensors"
    save_sparse({"first.weight": torch.zeros(4, 4), "second.weight": torch.ones(4, 4)}, path)
    with pytest.raises(Exception, match="one tensor in the model and differ"):
        load_sparse(path, into=Tied())


def test_layouts_and_dtypes_other_than_the_usual(tmp_path):
    path, base = tmp_path / "m.safetensors", torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "expanded": torch.tensor([[1.0], [0.0]]).expand(2, 3),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "half": base.half(),
        "brain": base.bfloat16(),
        "eighth": base.to(torch.float8_e4m3fn),
        "conjugate": torch.complex(base, base).conj(),
        "negative": torch.complex(base, base).conj().imag,
        "negative_zero": torch.tensor([-0.0, 0.0, float("nan")]),
    }
    save_sparse(state, path)
    read = read_sparse(path).state
    assert all(
        same(read[name], value.contiguous().resolve_conj().resolve_neg())
        for name, value in state.items()
    )
    assert read_sparse(path).ties == {}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"w": torch.zeros(2, device="meta")}, "'w' is on the meta device"),
        ({"w": nn.LazyLinear(2).weight}, "'w' is lazy"),
        (
            {"w": torch.eye(2).to_sparse()},
            "'w' is torch.float32 of layout torch.sparse_coo",
        ),
        ({"w": torch.zeros(2, dtype=torch.uint16)}, "'w' has dtype torch.uint16"),
        ({"w": "text"}, "'w' is a str"),
        ({"../w": torch.zeros(2)}, "is a path out of its folder"),
        ({"w\n": torch.zeros(2)}, "cannot be printed"),
        ({"n" * 2000: torch.zeros(2)}, "is a name of 2000 characters"),
    ],
)
def test_what_has_no_bits_or_no_honest_name_is_refused(state, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        save_sparse(state, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_dense_and_torch_prune_checkpoints_are_read(tmp_path):
    from safetensors.torch import save_file

    model, pruned = network(), network()
    save_file(model.state_dict(), tmp_path / "dense.safetensors")
    assert torch.equal(
        load_sparse(tmp_path / "dense.safetensors", into=network())[0].weight,
        model[0].weight,
    )
    prune.l1_unstructured(pruned[4], "weight", amount=0.5)
    save_file(pruned.state_dict(), tmp_path / "pruned.safetensors")
    loaded = load_sparse(tmp_path / "pruned.safetensors", into=network())
    assert torch.equal(loaded[4].weight, pruned[4].weight)


def test_unpack_gives_a_dense_safetensors_file(tmp_path):
    from safetensors.torch import load_file

    model = network()
    save_sparse(model, tmp_path / "m.safetensors", notes={"arch": "own"})
    unpack_sparse(tmp_path / "m.safetensors", tmp_path / "dense.safetensors")
    dense = load_file(tmp_path / "dense.safetensors")
    assert all(same(dense[name], value) for name, value in model.state_dict().items())
    with safe_open(tmp_path / "dense.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "arch": "own"}


def test_what_does_not_fit_is_listed_and_nothing_changes(tmp_path):
    path, other = (
        tmp_path / "m.safetensors",
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4).double()),
    )
    save_sparse(
        {
            "0.weight": torch.zeros(3, 3),
            "1.weight": torch.zeros(4, 3),
            "2.bias": torch.zeros(3),
        },
        path,
    )
    before = other[0].weight.clone()
    with pytest.raises(Exception, match="lacks '0.bias'.*lacks '1.bias'") as caught:
        load_sparse(path, into=other)
    assert "'2.bias'" in str(caught.value) and "torch.float32 in the file and torch.float64" in str(
        caught.value
    )
    assert torch.equal(other[0].weight, before)


@pytest.mark.parametrize(
    ("values", "tolerance"), [("bf16", 2**-8), ("fp16", 2**-11), ("int8", 0.5 / 127)]
)
def test_rounded_values_load_in_their_own_dtype_and_say_what_changed(values, tolerance, tmp_path):
    path, model = tmp_path / "m.safetensors", network().eval()
    exact = save_sparse(model, tmp_path / "exact.safetensors")
    sizes = save_sparse(model, path, values=values)
    loaded = load_sparse(path, into=network()).eval()
    for name in ("0.weight", "4.weight"):
        ours, theirs = model.state_dict()[name], loaded.state_dict()[name]
        largest = ours.abs().flatten(1).amax(1).view(-1, *[1] * (ours.ndim - 1))
        unit = largest if values == "int8" else ours.abs()
        assert theirs.dtype == ours.dtype
        assert bool(((ours - theirs).abs() <= tolerance * unit * (1 + 1e-6)).all())
    assert torch.equal(loaded[4].bias, model[4].bias)
    assert sizes.bytes - sizes.header < exact.bytes - exact.header
    told = read_sparse(path).rounding
    change = max(
        float((a - b).detach().abs().max())
        for a, b in zip(model.parameters(), loaded.parameters(), strict=True)
    )
    assert told["values"] == values
    assert told["largest_change"] == pytest.approx(change)


def test_values_that_cannot_be_rounded_are_refused_by_name(tmp_path):
    with pytest.raises(ArgumentError, match="'w' has values up to 7e\\+04, too large for fp16"):
        save_sparse({"w": torch.full((2, 2), 7e4)}, tmp_path / "m", values="fp16")
    with pytest.raises(ArgumentError, match="'w' has values that are not finite"):
        save_sparse({"w": torch.full((2, 2), float("nan"))}, tmp_path / "m", values="bf16")
    with pytest.raises(ArgumentError, match="bf16"):
        save_sparse({"w": torch.zeros(2, 2)}, tmp_path / "m", values="bf15")


@pytest.mark.parametrize("values", ["bf16", "fp16", "int8"])
def test_one_number_that_is_not_finite_is_found_among_many(values, tmp_path):
    for wrong in (float("nan"), float("inf"), -float("inf")):
        weight = torch.randn(5, 7)
        weight[3, 4] = wrong
        with pytest.raises(ArgumentError, match="'w' has values that are not finite"):
            save_sparse({"w": weight}, tmp_path / "m", values=values)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_is_as_short_already_stays_exact(dtype, tmp_path):
    weight = torch.randn(4, 4).to(dtype)
    for values in ("bf16", "fp16", "int8"):
        save_sparse({"w": weight}, tmp_path / "m", values=values)
        found = read_sparse(tmp_path / "m").tensors["w"]
        assert torch.equal(found.view(torch.uint8), weight.view(torch.uint8))


def test_certificate_and_notes_come_back(tmp_path):
    import secateurs as sc

    path, model, dense = (
        tmp_path / "m.safetensors",
        network().eval(),
        network().eval(),
    )
    dense[4].weight.data += 0.01
    x = torch.randn(8, 3, 4, 4)
    certificate = sc.proof.statistical(dense, model, data=x)
    save_sparse(model, path, certificate=certificate, notes={"arch": "own"})
    file = read_sparse(path)
    assert file.certificate["largest"] == certificate.largest
    assert file.notes == {"arch": "own"}


def test_a_grid_of_live_rows_and_columns_saves_bits(tmp_path):
    torch.manual_seed(0)
    weight = torch.zeros(400, 400)
    rows, columns = torch.randperm(400)[:40], torch.randperm(400)[:40]
    weight[rows[:, None], columns] = torch.randn(40, 40) * (torch.rand(40, 40) < 0.3)
    clustered = save_sparse({"w": weight}, tmp_path / "a").bytes
    scattered = save_sparse(
        {"w": weight.view(-1)[torch.randperm(160_000)].view(400, 400)}, tmp_path / "b"
    ).bytes
    assert clustered < 0.9 * scattered
    assert torch.equal(load_sparse(tmp_path / "a")["w"], weight)


@pytest.fixture(scope="module")
def certified():
    import secateurs as sc

    dense, sparse = network().eval(), network().eval()
    sparse.load_state_dict(dense.state_dict())
    sc.prune_(sparse, "magnitude", sparsity=0.95)
    x = torch.randn(2, 3, 4, 4)
    return (
        dense,
        sparse,
        sc.certify(dense, sparse, around=x, radius=0.01, methods="interval"),
        sc.proof.statistical(dense, sparse, data=x),
    )


KINDS = pytest.mark.parametrize("kind", [2, 3], ids=["proved", "on samples"])


@KINDS
def test_a_certificate_goes_with_the_weights_it_is_of(certified, tmp_path, kind):
    dense, sparse, certificate = *certified[:2], certified[kind]
    path = tmp_path / "m"
    record = json.loads(certificate.to_json())
    other = copy.deepcopy(sparse)
    # Not read in evaluation mode, and so no other weights.
    for name, buffer in other.named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.add_(1)
    for model in (
        sparse,
        other,
        sparse.state_dict(),
        torch.compile(sparse),
        sparse.double(),
    ):
        for given in (certificate, record):
            save_sparse(model, path, certificate=given)
    sparse.float()
    again = read_sparse(path)
    save_sparse(again.state, tmp_path / "again", certificate=again.certificate)
    save_sparse(again.tensors, tmp_path / "again", certificate=again.certificate)
    save_sparse(dense, path, certificate=certificate)


@KINDS
def test_a_certificate_of_other_weights_is_refused(certified, tmp_path, kind):
    _, sparse, certificate = *certified[:2], certified[kind]
    record = json.loads(certificate.to_json())
    changed = copy.deepcopy(sparse)
    next(changed.parameters()).data.view(-1)[0] += 1e-6
    renamed = {f"x.{name}": value for name, value in sparse.state_dict().items()}
    foreign = copy.deepcopy(sparse)
    nn.init.normal_(foreign[4].weight)
    for model in (foreign, changed, changed.state_dict(), renamed):
        for given in (certificate, record, record | {"states": None}):
            with pytest.raises(ArgumentError, match="not about these weights"):
                save_sparse(model, tmp_path / "m", certificate=given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_are_trained_on_are_other_weights(tmp_path, dtype):
    """The certificate knows what they were, also where it shares memory with nobody's copy."""
    import secateurs as sc

    dense = nn.Linear(3, 2).to(dtype)
    sparse = copy.deepcopy(dense)
    certificate = sc.certify(dense, sparse, around=torch.zeros(1, 3), radius=0.1)
    before = json.loads(certificate.to_json())["networks"]
    sparse.weight.data += 1
    assert json.loads(certificate.to_json())["networks"] == before
    with pytest.raises(ArgumentError, match="before it was changed"):
        save_sparse(sparse, tmp_path / "m", certificate=certificate)


@pytest.mark.parametrize("values", ["bf16", "fp16", "int8"])
def test_a_certificate_of_the_weights_before_rounding_is_refused(certified, tmp_path, values):
    import secateurs as sc

    dense, sparse, certificate = certified[:3]
    path = tmp_path / "m"
    with pytest.raises(ArgumentError, match=f"before values='{values}' rounds them"):
        save_sparse(sparse, path, certificate=certificate, values=values)
    assert not path.exists()
    # The way out that it names.
    save_sparse(sparse, path, values=values)
    rounded = load_sparse(path, into=network().eval())
    proved = sc.certify(dense, rounded, around=torch.zeros(1, 3, 4, 4), radius=0.1)
    save_sparse(rounded, path, values=values, certificate=proved)
    assert read_sparse(path).certificate["bound"] == proved.bound
    for name, value in rounded.state_dict().items():
        assert torch.equal(load_sparse(path)[name], value), name


def test_int8_values_come_back_as_they_are(tmp_path, generator):
    """Rounding a second time changes nothing, whatever the scale of a row."""
    weight = torch.randn(3000, 24, generator=generator)
    weight *= torch.rand(3000, 1, generator=generator).exp2() ** 40
    weight[::3, 5:] = 0
    save_sparse({"w": weight}, tmp_path / "a", values="int8")
    once = load_sparse(tmp_path / "a")
    save_sparse(once, tmp_path / "b", values="int8")
    assert torch.equal(load_sparse(tmp_path / "b")["w"], once["w"])


def test_a_certificate_without_networks_is_refused(tmp_path):
    import secateurs as sc

    layer = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="SparsityReport does not say which networks"):
        save_sparse(layer, tmp_path / "m", certificate=sc.sparsity_report(layer))
