"""Exports compute what the model does, at several batch sizes, or nothing is written."""

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import secateurs
from old_torch import writes_onnx
from secateurs.channels import compact
from secateurs.errors import ArgumentError, MissingExtra, SecateursError, ShipError
from secateurs.ship import export
from secateurs_lab.models import build


class Skip(nn.Module):
    """A residual block with batch norm, and two inputs."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.b = nn.Conv2d(6, 3, 3, padding=1, bias=False)
        self.last = nn.Linear(3 * 36, 4)

    def forward(self, x, y):
        x = x + self.b(torch.relu(self.norm(self.a(x))))
        return {
            "logits": self.last(x.flatten(1)),
            "sum": x.mean(dim=(1, 2, 3)) + y.mean(dim=1),
        }


def sparse():
    torch.manual_seed(0)
    model = Skip().eval()
    model.a.weight.data[torch.rand(6) < 0.5] = 0
    model.b.weight.data[torch.rand_like(model.b.weight) < 0.7] = 0
    return model


EXAMPLE = (torch.randn(1, 3, 6, 6), torch.randn(1, 5))


@pytest.mark.parametrize(
    "example",
    [EXAMPLE, dict(zip("xy", EXAMPLE, strict=True))],
    ids=["positional", "named"],
)
def test_a_pt2_program_is_the_model_at_any_batch_size(example, tmp_path):
    model, path = sparse(), tmp_path / "m.pt2"
    done = export(model, path, example)
    assert done.any_batch and done.difference == 0
    assert done.bytes == path.stat().st_size
    call = example if isinstance(example, dict) else dict(zip("xy", example, strict=True))
    given = {name: torch.cat([value] * 5) for name, value in call.items()}
    loaded = torch.export.load(path).module()
    answers = loaded(**given) if isinstance(example, dict) else loaded(*given.values())
    assert torch.equal(answers["logits"], model(**given)["logits"])


@writes_onnx
def test_an_onnx_file_is_the_model_masked_and_compacted(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    sizes = {}
    for name, model in (
        ("masked", sparse()),
        ("compacted", compact(sparse(), EXAMPLE)),
    ):
        path = tmp_path / f"{name}.onnx"
        done = export(model, path, EXAMPLE)
        assert done.any_batch and 0 <= done.difference < 1e-5
        session = onnxruntime.InferenceSession(str(path))
        given = [torch.cat([value] * 4) for value in EXAMPLE]
        names = [put.name for put in session.get_inputs()]
        answers = session.run(None, {n: v.numpy() for n, v in zip(names, given, strict=True)})
        with torch.no_grad():
            expected = sparse()(*given)
        torch.testing.assert_close(torch.from_numpy(answers[0]), expected["logits"])
        torch.testing.assert_close(torch.from_numpy(answers[1]), expected["sum"])
        sizes[name] = done.bytes
    assert sizes["compacted"] < sizes["masked"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "compacted.onnx",
        "masked.onnx",
    ]


def test_a_c_file_is_the_model_for_one_sample(tmp_path):
    model, x = build("lenet-5").eval(), torch.randn(2, 1, 28, 28)
    done = export(model, tmp_path / "net.c", x[:1])
    assert done.difference < 1e-5 and not done.any_batch
    assert 0 < done.seconds < 600  # what it took, not the time of day
    assert "predict" in (tmp_path / "net.c").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["net.c"]
    with pytest.raises(ShipError, match="one sample, not 2"):
        export(model, tmp_path / "other.c", x)


@pytest.mark.slow
def test_machine_code_ahead_of_time_is_the_model(tmp_path):
    done = export(
        build("lenet-300-100").eval(),
        tmp_path / "m.pt2",
        torch.zeros(1, 1, 28, 28),
        compiled=True,
    )
    assert done.any_batch and done.difference < 1e-5 and done.runtime == "AOTInductor"


class OneSampleOnly(nn.Module):
    def forward(self, x):
        return x.reshape(1, 6)


def test_a_fixed_batch_is_told(tmp_path):
    done = export(OneSampleOnly().eval(), tmp_path / "m.pt2", torch.zeros(1, 2, 3))
    assert not done.any_batch
    assert done.why_fixed


class Drifting(nn.Module):
    """Gives another answer at every call, as no program of it can."""

    # No attribute of the model: a tracer may put those back.
    calls = itertools.count()

    def forward(self, x):
        return x + next(Drifting.calls)


@pytest.mark.parametrize(
    ("tolerance", "wrong"),
    [(1e-5, "differs from the model by"), (float("nan"), "differs")],
)
def test_a_result_that_differs_is_not_kept(tolerance, wrong, tmp_path):
    with pytest.raises(ShipError, match=wrong):
        export(
            Drifting().eval(),
            tmp_path / "m.pt2",
            torch.ones(1, 2),
            tolerance=tolerance,
        )
    assert not list(tmp_path.iterdir())


def test_an_earlier_file_survives_a_failure(tmp_path):
    path = tmp_path / "m.pt2"
    path.write_text("before")
    with pytest.raises(ShipError):
        export(Drifting().eval(), path, torch.ones(1, 2))
    assert path.read_text() == "before"


class Undecided(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_traced_is_named(tmp_path):
    with pytest.raises(ShipError, match="Undecided cannot be traced by torch.export"):
        export(Undecided().eval(), tmp_path / "m.pt2", torch.ones(1, 2))


def test_wrong_calls_are_refused(tmp_path):
    model, x = nn.Linear(2, 2).eval(), torch.zeros(1, 2)
    with pytest.raises(ArgumentError, match="evaluation mode"):
        export(nn.Dropout().train(), tmp_path / "m.pt2", x)
    with pytest.raises(ArgumentError, match="'.onxx'.*'.onnx'"):
        export(model, tmp_path / "m.onxx", x)
    with pytest.raises(ArgumentError, match="only a .pt2 file can be compiled"):
        export(model, tmp_path / "m.onnx", x, compiled=True)


def test_without_onnx_the_install_line_is_told(tmp_path, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "onnxscript" else found(name, *a),
    )
    with pytest.raises(MissingExtra, match="pip install 'secateurs\\[onnx\\]'"):
        export(nn.Linear(2, 2).eval(), tmp_path / "m.onnx", torch.zeros(1, 2))


def test_importing_the_package_imports_no_onnx():
    names = "{'onnx', 'onnxruntime', 'onnxscript'}"
    code = f"import sys, secateurs.ship; sys.exit(bool({names} & set(sys.modules)))"
    source = Path(secateurs.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=source, check=False).returncode == 0


class Tokens(nn.Module):
    """Token ids and a mark of which count, with sixteen positions; `flat` reads all at once."""

    def __init__(self, *, flat=False):
        super().__init__()
        torch.manual_seed(0)
        self.word, self.place = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.last, self.flat = nn.Linear(8 * 6 if flat else 8, 3), flat

    def forward(self, ids, mask):
        places = torch.arange(ids.shape[1], device=ids.device)
        h = (self.word(ids) + self.place(places)) * mask[:, :, None]
        return self.last(h.flatten(1) if self.flat else h.sum(1))


@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".onnx", marks=writes_onnx)])
def test_the_length_of_tokens_is_free_where_the_model_allows_it(suffix, tmp_path):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (1, 6), generator=generator)
    example = {"ids": ids, "mask": torch.ones_like(ids)}
    free = export(Tokens().eval(), tmp_path / f"free{suffix}", example)
    assert (free.any_batch, free.any_length, free.why_length) == (True, True, "")
    fixed = export(Tokens(flat=True).eval(), tmp_path / f"flat{suffix}", example)
    assert (fixed.any_batch, fixed.any_length) == (True, False)
    assert fixed.why_length and "that of the example alone" in str(fixed)
    table = str(export(sparse(), tmp_path / f"m{suffix}", EXAMPLE)).partition("┌")[2]
    assert "length" not in table
    if suffix == ".pt2":
        loaded = torch.export.load(tmp_path / "free.pt2").module()
        longer = torch.randint(0, 20, (3, 11), generator=generator)
        given = {"ids": longer, "mask": (longer > 4).long()}
        assert torch.allclose(loaded(**given), Tokens().eval()(**given), atol=1e-6)


def test_a_cache_of_keys_and_values_is_named_with_the_way_out(tmp_path):
    class Cached(nn.Linear):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else x

    model = Cached(3, 3).eval()
    for used in (True, False):
        model.config = SimpleNamespace(use_cache=used)
        for refused in (
            lambda: export(model, tmp_path / "m.pt2", torch.ones(1, 3)),
            lambda: secateurs.capture(model, torch.ones(1, 3)),
        ):
            with pytest.raises(SecateursError) as caught:
                refused()
            told = "set model.config.use_cache = False" in str(caught.value)
            assert told is used


class Bessel(nn.Module):
    """An operator that no version of the exporter has."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        return torch.special.bessel_j0(self.first(x))


@writes_onnx
def test_the_reason_of_the_onnx_exporter_is_passed_on(tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(ShipError, match=r"cannot write this model: .*bessel_j0.*Write what it"):
        export(Bessel().eval(), tmp_path / "m.onnx", torch.zeros(2, 3))
    assert not any(tmp_path.iterdir())


@writes_onnx
def test_sparse_weights_make_a_smaller_onnx_file_of_the_same_bits(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 64, 3), nn.ReLU()
    )
    model.append(nn.Flatten()).append(nn.Linear(64 * 36, 100)).eval()
    example = torch.randn(2, 1, 10, 10)
    secateurs.prune_(model, "magnitude", sparsity=0.9)
    with torch.no_grad():
        model[6].weight.view(-1)[:3] = -0.0
    sizes, outputs = {}, {}
    for sparse in (False, True):
        path = tmp_path / f"{sparse}.onnx"
        sizes[sparse] = export(model, path, example, sparse=sparse).bytes
        session = onnxruntime.InferenceSession(str(path))
        (given,) = session.get_inputs()
        outputs[sparse] = session.run(None, {given.name: example.numpy()})[0]
    assert outputs[True].tobytes() == outputs[False].tobytes()
    assert sizes[True] < 0.35 * sizes[False]
    graph = onnx.load(tmp_path / "True.onnx").graph
    onnx.checker.check_model(str(tmp_path / "True.onnx"))
    held = {s.values.name: s for s in graph.sparse_initializer}
    # What is hardly sparse stays as it is, and −0 is a value like others.
    (linear,) = [s for s in held.values() if list(s.dims) == [100, 64 * 36]]
    assert linear.indices.dims == [int((model[6].weight.view(torch.int32) != 0).sum())]
    assert any("bias" in t.name for t in graph.initializer)


def test_only_an_onnx_file_has_sparse_weights(tmp_path):
    with pytest.raises(ArgumentError, match=r"only an \.onnx file has sparse weights, not m\.pt2"):
        export(nn.Linear(3, 2).eval(), tmp_path / "m.pt2", torch.zeros(1, 3), sparse=True)
