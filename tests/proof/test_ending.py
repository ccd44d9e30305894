"""Bounds carried through a softmax, sigmoid or tanh at the end: against the largest change there
is, in exact digits, and the certificates that follow.
"""

import copy
import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import ArgumentError, StructureMismatch
from secateurs.graph.ir import Ending
from secateurs.proof import recheck
from secateurs.proof.certify import ends_of_f
from secateurs.proof.ending import carry, error_of, explain
from secateurs.proof.methods import MethodBounds

STEPS = (0.0, 5e-324, 1e-300, 1e-12, 0.003, 0.4, 1.0, 7.0, 80.0, 1e6)


def ending(name: str, classes: int = 3) -> Ending:
    shape = (1, classes)
    return Ending(name=name, dim=1 if "soft" in name else None, inner=shape, shape=shape)


def carried(end: Ending, change: Tensor) -> Tensor:
    """Where nothing is known of what enters."""
    return carry(end, change, torch.full_like(change, -math.inf), torch.full_like(change, math.inf))


def exact(name: str, z: list) -> list:
    """The map in 60 digits."""
    z = [mpmath.mpf(v) for v in z]
    if name == "sigmoid":
        return [1 / (1 + mpmath.exp(-v)) for v in z]
    if name == "tanh":
        return [mpmath.tanh(v) for v in z]
    total = sum(mpmath.exp(v) for v in z)
    if name == "softmax":
        return [mpmath.exp(v) / total for v in z]
    return [v - mpmath.log(total) for v in z]


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_across_zero_changes_most_and_the_bound_is_no_larger(name, step):
    bound = float(carried(ending(name), torch.full((1, 3), step, dtype=torch.float64))[0, 0])
    with mpmath.workdps(400):
        half = mpmath.mpf(step) / 2
        most = exact(name, [half])[0] - exact(name, [-half])[0]
        assert most <= bound <= most * (1 + mpmath.mpf(2) ** -44) + mpmath.mpf(2) ** -1021
        for middle in (-3, -0.2, 0.1, 2, 9):
            assert exact(name, [middle + half])[0] - exact(name, [middle - half])[0] <= bound


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("step", [1e-300, 1e-12, 0.4, 7.0, 80.0])
@pytest.mark.parametrize("near", [0.0, 0.3, 5.0, 33.0, 700.0, 1e4])
def test_where_f_lies_far_from_zero_the_bound_is_the_step_from_there(name, step, near):
    change = torch.full((1, 1), step, dtype=torch.float64)
    at = torch.full_like(change, near)
    bounds = [
        float(carry(ending(name, 1), change, low, high)[0, 0])
        for low, high in ((at, at + 2), (-at - 2, -at))
    ]
    assert bounds[0] == bounds[1]
    factor = 2 if name == "tanh" else 1
    with mpmath.workdps(400):
        begin = max(mpmath.mpf(near), mpmath.mpf(step) / 2)
        one, two = exact(name, [begin, begin - mpmath.mpf(step)])
        assert one - two <= bounds[0]
        digits = mpmath.mpf(2) ** -38 if begin * factor > 50 else mpmath.mpf(2) ** -43
        assert bounds[0] <= (one - two) * (1 + digits) + mpmath.mpf(2) ** -1020


def test_no_change_of_a_softmax_exceeds_the_bound_for_what_is_known_of_its_inputs():
    g = torch.Generator().manual_seed(2)
    sizes, nearest, gained = (0.0, 1e-9, 0.02, 0.5, 3.0), 0.0, 0
    with mpmath.workdps(60):
        for number in range(200):
            classes = 2 + number % 4
            z = torch.randn(1, classes, generator=g, dtype=torch.float64) * 6
            reach = torch.rand(1, classes, generator=g, dtype=torch.float64) * (number % 3)
            chosen = torch.randint(len(sizes), (1, classes), generator=g)
            change = torch.tensor(sizes, dtype=torch.float64)[chosen]
            ends = z + reach, z - reach
            bound = carry(ending("softmax", classes), change, *ends[::-1])[0].tolist()
            gained += sum(
                b < 0.5 * o
                for b, o in zip(bound, carried(ending("softmax", classes), change)[0], strict=True)
            )
            for signs in itertools.product((-1, 1), repeat=classes):
                # f at corners of what is known of it, g one step from there.
                sign = torch.tensor(signs, dtype=torch.float64)
                for f in (torch.where(sign > 0, *ends), torch.where(sign > 0, *ends[::-1])):
                    start = [mpmath.mpf(v) for v in f[0].tolist()]
                    steps = (sign * change)[0].tolist()
                    after = [v - s for v, s in zip(start, steps, strict=True)]
                    moved = [
                        abs(a - b)
                        for a, b in zip(
                            exact("softmax", after), exact("softmax", start), strict=True
                        )
                    ]
                    assert all(m <= b for m, b in zip(moved, bound, strict=True))
                    nearest = max(
                        [nearest, *(m / b for m, b in zip(moved, bound, strict=True) if b > 1e-6)]
                    )
    assert nearest > 0.99 and gained > 100


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_no_change_of_a_softmax_exceeds_its_bound(name):
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor(STEPS, dtype=torch.float64)
    nearest = 0.0
    with mpmath.workdps(60):
        for _ in range(150):
            change = sizes[torch.randint(len(sizes), (3,), generator=g)]
            bound = carried(ending(name), change.unsqueeze(0))[0].tolist()
            # Differences at the middle of their ranges are where softmax is steepest.
            z = torch.randn(3, generator=g, dtype=torch.float64).mul(3).tolist()
            for signs in itertools.product((-1, 1), repeat=3):
                steps = [s * mpmath.mpf(d) for s, d in zip(signs, change.tolist(), strict=True)]
                for start in (z, [v - s / 2 for v, s in zip(z, steps, strict=True)]):
                    after = [v + s for v, s in zip(start, steps, strict=True)]
                    moved = [
                        abs(a - b)
                        for a, b in zip(exact(name, after), exact(name, start), strict=True)
                    ]
                    assert all(m <= b for m, b in zip(moved, bound, strict=True))
                    shares = [m / b for m, b in zip(moved, bound, strict=True) if b > 1e-3]
                    nearest = max([nearest, *shares])
    assert nearest > 0.9


def test_two_classes_reach_the_bound_of_a_softmax():
    change = torch.tensor([[0.3, 0.9]], dtype=torch.float64)
    z = torch.tensor([[0.6, 0.0]], dtype=torch.float64)  # from −0.6 to 0.6
    moved = z.softmax(1) - (z + torch.tensor([[-0.3, 0.9]])).softmax(1)
    assert torch.allclose(moved.abs(), carried(ending("softmax", 2), change), rtol=1e-12)


def test_an_unlikely_class_reaches_the_bound_of_a_log_softmax():
    change = torch.tensor([[0.3, 0.9]], dtype=torch.float64)
    z = torch.tensor([[-60.0, 0.0]], dtype=torch.float64)
    moved = (z + torch.tensor([[-0.3, 0.9]])).log_softmax(1) - z.log_softmax(1)
    assert torch.allclose(moved[0, 0].abs(), carried(ending("log_softmax", 2), change)[0, 0])


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sigmoid", "tanh"])
def test_the_formula_that_is_said_is_the_one_that_is_used(name):
    change = torch.tensor([[0.3, 0.9, 0.2]], dtype=torch.float64)
    said = explain(ending(name)).partition("the result by ")[2].partition(";")[0]
    said = said.replace("·", "*").replace("max δ_j", "0.9").replace("δ_i", "δ")
    found = eval(said, {"tanh": math.tanh, "δ": 0.3})
    assert float(carried(ending(name), change)[0, 0]) == pytest.approx(found, rel=1e-12)


def test_nothing_changes_where_nothing_enters_and_one_class_alone_never_does():
    for name in ("sigmoid", "tanh", "softmax", "log_softmax"):
        assert not carried(ending(name), torch.zeros(2, 3, dtype=torch.float64)).any()
    for name in ("softmax", "log_softmax"):
        assert not carried(ending(name, 1), torch.full((2, 1), math.inf)).any()


def test_what_proves_nothing_in_front_proves_that_outputs_are_bounded():
    known = {"sigmoid": 1.0, "tanh": 2.0, "softmax": 1.0, "log_softmax": math.inf}
    for name, most in known.items():
        for nothing in (math.inf, math.nan):
            change = torch.full((1, 3), nothing, dtype=torch.float64)
            assert carried(ending(name), change).tolist() == [[most] * 3]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_of_evaluation_covers_what_torch_computes(name, dtype):
    g = torch.Generator().manual_seed(1)
    for classes, size in itertools.product((1, 2, 9, 60), (0.1, 5, 100)):
        x = (torch.randn(4, classes, generator=g) * size).to(dtype)
        unit = torch.finfo(dtype).eps / 2
        allowed = error_of(ending(name, classes), x.double(), unit)
        found = ending(name, classes)(x)
        with mpmath.workdps(60):
            for row, values, most in zip(x.tolist(), found.tolist(), allowed.tolist(), strict=True):
                for a, b, e in zip(exact(name, row), values, most, strict=True):
                    assert abs(a - b) <= e


def test_units_of_error_are_as_counted():
    """No processor here errs by as much; 16 units are left to the exp or tanh of any."""
    x = torch.tensor([[2.0, -1.0, 5.0]], dtype=torch.float64)
    for name in ("sigmoid", "tanh"):
        assert error_of(ending(name), x, 2.0**-20).tolist() == [[40 * 2.0**-20] * 3]
    assert error_of(ending("softmax"), x, 2.0**-20).tolist() == [[86 * 2.0**-20] * 3]
    each = [[n * 2.0**-20 for n in (86 + 4 * 3, 86 + 4 * 6, 86)]]
    assert error_of(ending("log_softmax"), x, 2.0**-20).tolist() == each


# Whole certificates.


def networks(end: nn.Module, classes: int = 4) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, classes), end)
    sparse = copy.deepcopy(dense)
    sc.prune_(sparse, "magnitude", sparsity=0.1)
    return dense, sparse, torch.randn(5, 6)


ENDS = {
    "softmax": nn.Softmax(1),
    "log_softmax": nn.LogSoftmax(-1),
    "sigmoid": nn.Sequential(nn.Sigmoid(), nn.Unflatten(1, (2, 2))),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_certificate_is_that_of_the_logits_carried_on(name):
    dense, sparse, x = networks(ENDS[name])
    cert = sc.certify(dense, sparse, around=x, radius=0.02)
    bare = sc.certify(dense[:3], sparse[:3], around=x, radius=0.02)
    assert torch.allclose(cert.inner, bare.per_box, rtol=1e-12)
    assert bool((cert.per_box <= carried(cert.problem.ending, cert.inner)).all())
    assert 0 < cert.lower_bound <= cert.bound <= 4 * cert.lower_bound
    with torch.no_grad():
        at = cert.worst_input.unsqueeze(0).float()
        assert float((dense(at) - sparse(at)).abs().max()) == pytest.approx(cert.found, rel=1e-3)
        assert cert.per_output.shape == dense(at)[0].shape
    assert any(f"{name} at the end" in text for text in cert.assumptions)


@pytest.mark.parametrize("methods", ["auto", "interval", "affine", "zonotope"])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "tanh"])
def test_outputs_that_are_decided_change_less(name, methods):
    dense, sparse, x = networks(ENDS[name])
    for network in (dense, sparse):
        with torch.no_grad():
            network[2].bias += torch.tensor([9.0, -9.0, -12.0, -12.0])
    cert = sc.certify(dense, sparse, around=x, radius=0.02, methods=methods, effort=1e12)
    assert cert.lower_bound <= cert.bound
    blind = carried(cert.problem.ending, cert.inner)
    assert bool((cert.per_box < 0.01 * blind).all())
    # Of the model that is evaluated all of this is covered as well.
    own = sc.certify(dense, sparse, around=x, radius=0.02, methods=methods, rounding=True)
    with torch.no_grad():
        assert float((dense(x) - sparse(x)).abs().max()) <= own.bound


def test_an_overflow_in_front_of_a_sigmoid_proves_that_outputs_are_bounded():
    change = torch.full((1, 2), 1e308, dtype=torch.float64)
    for low, high in ((math.nan, math.nan), (-math.inf, math.inf), (1e308, 1.7e308)):
        ends = torch.full_like(change, low), torch.full_like(change, high)
        for name, most in (("sigmoid", 1.0), ("tanh", 2.0), ("softmax", 1.0)):
            assert carry(ending(name, 2), change, *ends).tolist() == [[most] * 2]


def test_classes_are_compared_in_front_of_a_softmax():
    dense, sparse, x = networks(nn.Softmax(1))
    cert = sc.certify(dense, sparse, around=x, radius=0.02)
    bare = sc.certify(dense[:3], sparse[:3], around=x, radius=0.02)
    assert cert.certified_share(x) == bare.certified_share(x) == 1.0
    assert cert.worth.kept == bare.worth.kept
    assert cert.worth.smallest_margin == pytest.approx(bare.worth.smallest_margin)
    assert cert.worth.output_range < 0.5 * bare.worth.output_range
    claims = [
        sc.certify(f, g, around=x, radius=0.02, claim="top-1", margin=0.05)
        for f, g in ((dense, sparse), (dense[:3], sparse[:3]))
    ]
    assert claims[0].claim.answer == claims[1].claim.answer == "proven"


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("rounding", ["auto", False])
def test_it_is_proven_again_but_not_for_networks_without_the_map(name, rounding):
    dense, sparse, x = networks(ENDS[name])
    text = sc.certify(dense, sparse, around=x, radius=0.02, rounding=rounding, norm=2).to_json()
    assert recheck(text, dense, sparse).holds
    again = recheck(text, dense[:3], sparse[:3])
    assert "the graph of the dense network is not the one certified" in str(again)
    bare = sc.certify(dense[:3], sparse[:3], around=x, radius=0.02, rounding=rounding, norm=2)
    assert not recheck(bare.to_json(), dense, sparse).holds


def test_evaluation_in_single_precision_is_covered_but_that_of_a_log_softmax():
    dense, sparse, x = networks(nn.Softmax(1))
    exact_, own = (
        sc.certify(dense, sparse, around=x, radius=0.02, rounding=r).bound for r in ("auto", True)
    )
    assert exact_ + 1e-6 < own < exact_ + 1e-4
    dense, sparse, x = networks(nn.LogSoftmax(1))
    with pytest.raises(ArgumentError, match="rounding=True does not cover a log-softmax"):
        sc.certify(dense, sparse, around=x, radius=0.02, rounding=True)


def test_a_target_and_a_written_proof_are_for_networks_without_the_map(tmp_path):
    dense, sparse, x = networks(nn.Sigmoid())
    with pytest.raises(ArgumentError, match=r"end in a sigmoid\. Leave it out"):
        sc.certify(dense, sparse, around=x, radius=0.02, target=0.1)
    cert = sc.certify(dense, sparse, around=x, radius=0.02)
    with pytest.raises(ArgumentError, match="end in a sigmoid, which a proof does not read"):
        sc.proof.write_proof(cert, dense, sparse, tmp_path / "proof.json")


def test_networks_that_end_otherwise_are_not_compared():
    dense, sparse, x = networks(nn.Sigmoid())
    for other, words in ((sparse[:3], "sigmoid against nothing"), (None, "sigmoid against tanh")):
        end = other if other is not None else nn.Sequential(*sparse[:3], nn.Tanh())
        with pytest.raises(StructureMismatch, match=f"differ in what follows .*: {words}"):
            sc.certify(dense, end, around=x, radius=0.02)


def test_pruning_up_to_a_bound_on_probabilities():
    dense, _, x = networks(nn.Softmax(1))
    result = sc.prune_to_bound_(dense, x, bound=0.05, radius=0.01)
    assert 0 < result.sparsity < 1 and result.certificate.bound <= 0.05


def test_a_network_whose_last_map_is_inside_as_well_is_refused():
    f = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 3), nn.Sigmoid())
    with pytest.raises(sc.errors.UnsupportedOperation, match=r"sigmoid\.default at 1 "):
        sc.certify(f, copy.deepcopy(f), around=torch.zeros(1, 3), radius=0.1)


def test_ends_of_f_are_cut_with_each_other_after_what_is_added():
    def known(*ends: float) -> MethodBounds:
        low, high = (torch.tensor([[end]], dtype=torch.float64) for end in ends)
        return MethodBounds(per_output=high - low, ends=(low, high))

    added = {
        name: torch.tensor([[e]], dtype=torch.float64)
        for name, e in zip("abc", (1, 2, 8), strict=True)
    }
    none = MethodBounds(per_output=torch.ones(1, 1, dtype=torch.float64))
    assert ends_of_f({"a": known(3, 9), "b": known(2.5, 4), "c": none}, added) == (2, 6)
    assert ends_of_f({"a": known(0, 9), "b": known(2.5, 9.5), "c": none}, added) == (0.5, 10)
    assert ends_of_f({"c": none}, {"c": added["c"]}) == (-math.inf, math.inf)
