"""Certificates written as proofs, and the checker of tools/second_opinion.py, which shares no code
with the library: what it proves, what it refuses, and that nothing made up makes it prove more.
"""

import ast
import copy
import hashlib
import importlib.util
import itertools
import json
import random
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import ArgumentError, UnsupportedOperation
from secateurs.proof import Certificate, write_proof

CHECKER = Path(__file__).parents[2] / "tools" / "second_opinion.py"
_spec = importlib.util.spec_from_file_location("second_opinion", CHECKER)
assert _spec is not None and _spec.loader is not None
opinion = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(opinion)


class Residual(nn.Module):
    """Convolutions with batch norm, a sum, averages, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.third = nn.Conv2d(3, 4, 2, stride=2, padding=(1, 0))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x) + x)
        x = torch.relu(self.third(x))
        y: Tensor = self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return y


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(5))
        self.layers = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x + self.shift)
        return y


def chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "chain": (lambda: chain(6, 16, 16, 16, 3), (6,)),
    "one layer": (lambda: nn.Sequential(nn.Linear(4, 2)), (4,)),
    "shifted": (Shifted, (5,)),
    "residual": (Residual, (2, 7, 6)),
}


def pair_of(name: str, seed: int) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(seed)
    make, shape = CASES[name]
    dense = make().eval()
    for module in dense.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    sparse = copy.deepcopy(dense)
    sc.prune_(sparse, "magnitude", density=0.7)
    with torch.no_grad():
        for value in sparse.parameters():
            value += 1e-3 * torch.randn_like(value) * (value != 0)
    return dense, sparse, torch.randn(3, *shape)


def written(
    folder: Path, name: str, seed: int = 0, **options: Any
) -> tuple[Certificate, dict[str, Any], nn.Module, nn.Module]:
    """A certificate, its proof, and both networks, whose weights lie in the folder."""
    dense, sparse, x = pair_of(name, seed)
    options = {"around": x, "radius": 0.1, "methods": "linear"} | options
    cert = sc.certify(dense, sparse, **options)
    write_proof(cert, dense, sparse, folder / "proof.json")
    save_file(dense.state_dict(), folder / "first.safetensors")
    save_file(sparse.state_dict(), folder / "second.safetensors")
    return cert, json.loads((folder / "proof.json").read_text()), dense, sparse


def weights(folder: Path) -> tuple[Any, Any]:
    return tuple(opinion.read_weights(folder / f"{k}.safetensors") for k in ("first", "second"))  # type: ignore[return-value]


def signed(proof: dict[str, Any]) -> dict[str, Any]:
    """With the hash that it ought to have."""
    rest = {key: value for key, value in proof.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    return {**rest, "sha256": hashlib.sha256(text).hexdigest()}


def farthest(cert: Certificate, dense: nn.Module, sparse: nn.Module) -> Tensor:
    """The largest differences per output at corners and points of the boxes, in float64."""
    low, high = cert.region.lo, cert.region.hi
    draws = torch.rand(400, *low.shape, dtype=torch.float64)
    draws[:200] = draws[:200].round()
    x = (low + (high - low) * draws).flatten(0, 1)
    f, g = (copy.deepcopy(one).double() for one in (dense, sparse))
    with torch.no_grad():
        return (f(x) - g(x)).abs().amax(dim=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_proves_again_what_was_written(tmp_path: Path, name: str, seed: int) -> None:
    cert, proof, dense, sparse = written(tmp_path, name, seed)
    worst, boxes, parts = opinion.check(proof, *weights(tmp_path))
    assert (boxes, parts) == (3, 3)
    found = farthest(cert, dense, sparse).numpy()
    assert (found <= worst).all() and found.max() > 0
    assert worst.max() <= 1.01 * cert.bound * (1 + 1e-9)


def test_a_target_is_stated_and_parts_are_cut_further(tmp_path: Path) -> None:
    loose = written(tmp_path, "chain", radius=0.5)[0]
    target = 0.7 * loose.bound
    cert, proof, *_ = written(tmp_path, "chain", radius=0.5, target=target, seconds=60)
    assert cert.answer == "proven" and proof["bound"] == [target] * 3
    worst, boxes, parts = opinion.check(proof, *weights(tmp_path))
    assert worst.max() <= target and parts > boxes == 3


def test_slopes_of_any_kind_prove_nothing_false(tmp_path: Path) -> None:
    """The offsets are the checker's own, so that any slopes give a bound."""
    cert, proof, dense, sparse = written(tmp_path, "chain", 1)
    found, draws = farthest(cert, dense, sparse).numpy(), np.random.default_rng(0)
    proof["bound"] = [1e6] * 3
    own = opinion.check(signed(proof), *weights(tmp_path))[0]
    for _ in range(20):
        for entry in proof["slopes"]:
            values = draws.uniform(-1, 1, entry["values"]["shape"])
            values[:, :2] = abs(values[:, :2])
            entry["values"] = sc_array(values)
        worst = opinion.check(signed(proof), *weights(tmp_path))[0]
        assert (worst >= found).all() and worst.max() > own.max()


def sc_array(values: np.ndarray) -> dict[str, Any]:
    from secateurs.proof.written import _array

    return _array(values, "<f4")


def test_no_edit_passes(tmp_path: Path) -> None:
    """A number changed in the file is refused. With the hash put right, it is refused or proven
    again: what is then claimed holds.
    """
    cert, _, dense, sparse = written(tmp_path, "chain", 2)
    text = (tmp_path / "proof.json").read_text()
    found, first, second = farthest(cert, dense, sparse).numpy(), *weights(tmp_path)
    places = [at.start() for at in re.finditer(r"[0-9A-Za-z+/]", text)]
    draws, passed, again = random.Random(0), 0, 0
    for _ in range(200):
        at = draws.choice(places)
        other = draws.choice([c for c in "0123456789" if c != text[at]])
        edited = text[:at] + other + text[at + 1 :]
        try:
            proof = json.loads(edited)
            opinion.check(proof, first, second)
            passed += 1
        except Exception:
            pass
        try:
            proof = signed(json.loads(edited))
            worst, *_ = opinion.check(proof, first, second)
        except Exception:
            continue
        again += 1
        # Boxes may have become smaller or moved, never the claim false on what they are now.
        assert (worst <= np.array(proof["bound"])).all()
        low, high = (
            opinion.array(proof["boxes"][k], "<f8").reshape(-1, 6) for k in ("low", "high")
        )
        with torch.no_grad():
            ends = torch.tensor(np.concatenate([low, high])).float()
            gap = (dense(ends) - sparse(ends)).abs().amax(dim=0).double().numpy()
        assert (gap <= np.array(proof["bound"]) + 1e-5).all()
    assert passed == 0 and again > 0 and found.max() > 0


def edited(proof: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    proof = copy.deepcopy(proof)
    inner: Any = proof
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return signed(proof)


REFUSED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a smaller bound": (("bound", 0), 1e-6, "proven is"),
    "no bound": (("bound",), [1.0], "not one bound per output"),
    "an unknown layer": (("layers", 2, "op"), "gelu", "'gelu' is not known here"),
    "a layer too few": (("layers",), [{"op": "relu", "from": [0]}], "one input"),
    "a tensor that is not there": (("layers", 1, "weight"), "9.weight", "no tensor '9.weight'"),
    "another wiring": (("layers", 2, "from"), [5], "reads what follows it"),
    "another tensor": (("layers", 3, "bias"), "0.bias", "another network"),
    "another rounding": (("rounded",), ["both"], "names no network"),
    "one more key": (("more",), 1, "not a 'secateurs proof 1'"),
    "fewer slopes": (("slopes",), [], "proven is"),
    "an example elsewhere": (("example", "x", 0), 9.0, "beside the first box"),
    "no boxes": (
        ("boxes",),
        {
            "low": {"shape": [0, 6], "zlib": "eJwDAAAAAAE="},
            "high": {"shape": [0, 6], "zlib": "eJwDAAAAAAE="},
            "cuts": {"shape": [0], "zlib": "eJwDAAAAAAE="},
        },
        "boxes without inputs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(tmp_path: Path, what: str) -> None:
    path, to, why = REFUSED[what]
    proof = written(tmp_path, "chain")[1]
    with pytest.raises(opinion.Refused, match=re.escape(why)):
        opinion.check(edited(proof, *path, to=to), *weights(tmp_path))


def test_refuses_other_weights(tmp_path: Path) -> None:
    proof = written(tmp_path, "chain")[1]
    first, second = weights(tmp_path)
    for tensors in ((second, second), (first, {k: 1.01 * v for k, v in second.items()})):
        with pytest.raises(opinion.Refused, match="another network"):
            opinion.check(proof, *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_reads_what_the_library_writes(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(50, 9))
    sc.prune_(model, "magnitude", density=0.2)
    model.to(dtype)
    sc.save_sparse(model, tmp_path / "sparse.safetensors")
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    for name in ("sparse", "plain"):
        read = opinion.read_weights(tmp_path / f"{name}.safetensors")
        for key, value in model.state_dict().items():
            assert np.array_equal(read[key], value.double().numpy()), (name, key)


def test_rounds_as_torch_does() -> None:
    values = torch.randn(10_000) * torch.logspace(-30, 30, 10_000)
    halves = torch.arange(0x3F800000, 0x3F900000, 0x8000, dtype=torch.int32).view(torch.float32)
    values = torch.cat([values, halves, -halves])  # every second one lies between two
    ours = opinion.rounded({"x": values.numpy()})["x"]
    assert np.array_equal(ours, values.bfloat16().float().numpy())


def test_runs_alone_and_says_what_it_found(tmp_path: Path) -> None:
    written(tmp_path, "residual")
    names = [tmp_path / name for name in ("proof.json", "first.safetensors", "second.safetensors")]
    run = [sys.executable, "-I", CHECKER]
    good = subprocess.run([*run, *names], capture_output=True, text=True)
    assert good.returncode == 0 and good.stdout.startswith("holds: |f - g| <= "), good
    bad = subprocess.run([*run, names[0], names[2], names[1]], capture_output=True, text=True)
    assert bad.returncode == 1 and bad.stdout.startswith("refused: "), bad
    (tmp_path / "proof.json").write_text("{")
    broken = subprocess.run([*run, *names], capture_output=True, text=True)
    assert broken.returncode == 1 and "cannot be read" in broken.stdout


def test_imports_numpy_and_the_standard_library_only() -> None:
    tree = ast.parse(CHECKER.read_text(encoding="utf-8"))
    found = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name is not None
    }
    assert found - set(sys.stdlib_module_names) == {"numpy"}
    documented = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(CHECKER.read_text(encoding="utf-8").splitlines(), 1)
    code = [n for n, line in lines if line.strip() and not line.strip().startswith("#")]
    assert len(set(code) - documented) <= 400


def test_refuses_to_write(tmp_path: Path) -> None:
    dense, sparse, x = pair_of("chain", 0)
    cert = sc.certify(dense, sparse, around=x, radius=0.1)
    with pytest.raises(ArgumentError, match="other weights"):
        write_proof(cert, sparse, dense, tmp_path / "proof.json")
    claim = sc.certify(dense, sparse, around=x, radius=0.01, claim="top-1")
    with pytest.raises(ArgumentError, match="another claim"):
        write_proof(claim, dense, sparse, tmp_path / "proof.json")
    pooled = nn.Sequential(nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 1))
    cert = sc.certify(pooled, copy.deepcopy(pooled), around=torch.randn(1, 2, 4), radius=0.1)
    with pytest.raises(UnsupportedOperation, match="nothing that the checker knows"):
        write_proof(cert, pooled, pooled, tmp_path / "proof.json")
    assert not list(tmp_path.iterdir())


class Named(nn.Module):
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.a, self.b, self.swapped = nn.Linear(4, 4), nn.Linear(4, 4), swapped

    def forward(self, x: Tensor) -> Tensor:
        first, last = (self.b, self.a) if self.swapped else (self.a, self.b)
        y: Tensor = last(torch.relu(first(x)))
        return y


def test_networks_that_name_their_tensors_otherwise_are_refused(tmp_path: Path) -> None:
    pair = Named(False).eval(), Named(True).eval()
    cert = sc.certify(*pair, around=torch.randn(1, 4), radius=0.1)
    with pytest.raises(UnsupportedOperation, match="other names"):
        write_proof(cert, *pair, tmp_path / "proof.json")


def convolved(*layers: nn.Module, width: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 2))


@pytest.mark.parametrize(
    "dense",
    [
        convolved(nn.Conv2d(2, 3, 2, padding="same"), nn.ReLU(), width=75),
        convolved(nn.Conv2d(2, 2, 3, groups=2), nn.ReLU(), width=18),
        convolved(nn.AvgPool2d(2, ceil_mode=True), width=18),
        convolved(nn.AvgPool2d(5, divisor_override=3), width=2),
        convolved(nn.Conv2d(2, 3, 3), nn.LeakyReLU(), width=27),
    ],
    ids=["padded on one side", "groups", "a rest", "another mean", "leaky"],
)
def test_what_the_checker_would_read_otherwise_is_refused(tmp_path: Path, dense: nn.Module) -> None:
    sparse = copy.deepcopy(dense.eval())
    cert = sc.certify(dense, sparse, around=torch.randn(1, 2, 5, 5), radius=0.1)
    with pytest.raises(UnsupportedOperation, match="nothing that the checker knows"):
        write_proof(cert, dense, sparse, tmp_path / "proof.json")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_networks_of_other_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    dense, sparse, x = pair_of("chain", 0)
    pair = dense.to(dtype), sparse.to(dtype)
    write_proof(sc.certify(*pair, around=x, radius=0.1), *pair, tmp_path / "proof.json")
    for name, model in zip(("first", "second"), pair, strict=True):
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    proof = json.loads((tmp_path / "proof.json").read_text())
    opinion.check(proof, *weights(tmp_path))
    point = torch.tensor(proof["example"]["x"], dtype=torch.float64)
    exact = copy.deepcopy(dense).double()(point)
    assert proof["example"]["first"] == pytest.approx(exact.tolist(), rel=1e-12)


def test_equal_networks_of_large_values(tmp_path: Path) -> None:
    dense, _, x = pair_of("chain", 0)
    with torch.no_grad():
        for value in dense.parameters():
            value *= 30
    write_proof(sc.certify(dense, dense, around=x, radius=0.1), dense, dense, tmp_path / "p.json")
    save_file(dense.state_dict(), tmp_path / "w.safetensors")
    tensors = opinion.read_weights(tmp_path / "w.safetensors")
    opinion.check(json.loads((tmp_path / "p.json").read_text()), tensors, tensors)


def test_planes_lie_beside_all_that_is_between() -> None:
    """Offsets against points of random ranges: on the right side everywhere, and touching."""
    draws, shape = np.random.default_rng(0), (1, 300)
    l, gl = draws.uniform(-2, 1, (2, *shape))
    h, gh = np.array([l, gl]) + draws.uniform(0.1, 2, (2, *shape))
    dl, dh = np.sort(draws.uniform(-1, 1, (2, *shape)), axis=0)
    above, below = draws.uniform(-1, 1, (2, 2, *shape))
    high, low = opinion.offsets(np.stack([l, h, gl, gh, dl, dh]), above, below)
    share = np.linspace(0, 1, 121).reshape(-1, 1, 1, 1)
    z, d = l + (h - l) * share, dl + (dh - dl) * share.swapaxes(0, 1)
    inside = (z - d >= gl) & (z - d <= gh)
    change = np.maximum(z, 0) - np.maximum(z - d, 0)
    most = np.where(inside, change - above[0] * z - above[1] * d, -np.inf).max((0, 1))
    least = np.where(inside, change - below[0] * z - below[1] * d, np.inf).min((0, 1))
    there = np.isfinite(most)
    assert there.sum() > 150
    assert (high >= most)[there].all() and (low <= least)[there].all()
    assert (high - most)[there].max() < 0.1 and (least - low)[there].max() < 0.1


def test_what_overflows_is_not_empty() -> None:
    """An end at infinity is no sign that a range holds no input."""
    one, zero, far = np.ones(1), np.zeros(1), np.full(1, np.inf)
    ends = np.stack([zero, far, zero, far, zero, one])
    high, _ = opinion.offsets(ends, (zero, zero), (zero, zero))
    assert not (high < np.inf).any()


def test_ties_of_a_sparse_file_are_read(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    sc.save_sparse(model, tmp_path / "tied.safetensors")
    read = opinion.read_weights(tmp_path / "tied.safetensors")
    assert np.array_equal(read["0.weight"], read["2.weight"])


ZOO = sorted(Path(str(files("secateurs_lab.zoo"))).joinpath("proofs").glob("*.json"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if "lenet-5_" in p.stem else []) for p in ZOO],
    ids=lambda p: p.stem,
)
def test_zoo_records_have_proofs_that_hold(path: Path) -> None:
    kept = path.parents[1] / "networks" / f"{path.stem}.safetensors"
    tensors = opinion.read_weights(kept)
    worst, boxes, _ = opinion.check(json.loads(path.read_text()), tensors, tensors)
    record = json.loads((kept.parent / f"{path.stem}.json").read_text())
    assert boxes == 2
    assert worst.max() == pytest.approx(record["certificate"]["bound"], rel=0.01)


def test_every_zoo_record_has_one() -> None:
    import secateurs_lab as lab

    assert {p.stem for p in ZOO} == {name.replace("/", "_") for name in lab.zoo.names()}
