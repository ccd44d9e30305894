import importlib
import json
import math
from dataclasses import replace

import pytest
import torch

import secateurs as sc
from proof.test_splitting import Joined, box, mlp, moved
from secateurs.errors import ArgumentError
from secateurs.proof.domain import box_domain
from secateurs.proof.kept import read_parts
from secateurs.proof.problem import read_problem
from secateurs.proof.recheck import recheck
from secateurs.proof.splitting import Parts, chain_of
from secateurs.proof.top_class import TopClass

prover = importlib.import_module("secateurs.proof.certify")


def disagreements(f, g, x, margin):
    """Inputs where f leads by more than the margin and g's largest output is another."""
    with torch.no_grad():
        one, two = f.double()(x), g.double()(x)
    top = one.topk(2, dim=1)
    sure = top.values[:, 0] - top.values[:, 1] > margin
    return sure & (two.argmax(dim=1) != top.indices[:, 0])


def enough(f, g, x):
    """The first of 400 margins up to 1 that is above every lead at which these inputs disagree."""
    differ = disagreements(f, g, x, -1.0)
    with torch.no_grad():
        top = f.double()(x[differ]).topk(2, dim=1).values
    worst = max((top[:, 0] - top[:, 1]).tolist(), default=0.0)
    return next(m for m in torch.linspace(0, 1, 400).tolist() if m >= worst)


@pytest.mark.parametrize("build", [lambda: mlp(2, 7, 7, 4), Joined], ids=["chain", "methods"])
@pytest.mark.parametrize("by", [0.01, 0.05])
def test_proven_by_splitting_and_made_again(build, by):
    """A lead a little above what is needed: the whole box does not show it, its parts do."""
    f = build().eval()
    g = moved(f, by)
    x = 2 * torch.rand(20000, 2, dtype=torch.float64) - 1
    lead = enough(f, g, x)
    margin = 1.2 * lead + 1e-3
    f, g = f.float(), g.float()
    cert = sc.certify(f, g, box=box(2), claim="top-1", margin=margin)
    assert cert.answer == cert.claim.answer == "proven"
    assert cert.claim.share == pytest.approx(1) and cert.claim.counterexample is None
    assert f"by more than {margin:g} is proven" in str(cert)
    assert not disagreements(f, g, x, margin).any()
    again = recheck(cert.to_json(), f.float(), g.float())
    assert again.holds, str(again)


def test_refuted_by_a_counterexample():
    f, g = mlp(2, 8, 3), mlp(2, 8, 3, seed=5)
    cert = sc.certify(f, g, box=box(2), claim="top-1", margin=0.01)
    assert cert.answer == "refuted"
    x = cert.claim.counterexample.unsqueeze(0)
    assert bool(disagreements(f, g, x, 0.01).all())
    text = cert.to_json()
    f, g = f.float(), g.float()
    assert recheck(text, f, g).holds
    record = json.loads(text)
    record["claim"]["answer"] = "proven"
    assert not recheck(json.dumps(record), f, g).holds
    record = json.loads(text)
    record["options"]["margin"] = 50.0
    assert not recheck(json.dumps(record), f, g).holds
    record = json.loads(text)
    del record["claim"]
    assert not recheck(json.dumps(record), f, g).holds


def test_what_is_not_proven_is_not_kept_as_proven():
    f = mlp(2, 7, 7, 4)
    g = moved(f, 0.05)
    x = 2 * torch.rand(20000, 2, dtype=torch.float64) - 1
    lead = enough(f, g, x)
    f, g = f.float(), g.float()
    cert = sc.certify(f, g, box=box(2), claim="top-1", margin=1.2 * lead + 1e-3)
    record = json.loads(cert.to_json())
    assert len(read_parts(record["options"]["parts"][0], 2)) > 1
    record["options"]["parts"] = [Parts(cuts=(0,)).pack()]
    found = recheck(json.dumps(record), f, g)
    assert "the claim is not proven by the parts that were kept" in found.problems


def test_networks_that_agree():
    f = mlp(2, 6, 3)
    assert sc.certify(f, f, box=box(2), claim="top-1").answer == "proven"


def test_time_ends_with_what_is_proven():
    f = mlp(6, 40, 40, 40, 3)
    g = moved(f, 1e-4)
    cert = sc.certify(f, g, box=box(6, 4.0), claim="top-1", methods="interval", seconds=2)
    assert cert.answer in ("open", "refuted")
    assert recheck(cert.to_json(), f, g).holds


def sizes(claim, ends):
    """How far each box is from a proof, at most 0 where it is one."""
    return claim.needs(ends).amax(dim=(1, 2)) - claim.margin


@pytest.mark.parametrize("margin", [0.0, 0.1, 1.0])
def test_a_point_is_decided_exactly(margin):
    """On a box without width the bounds are the values: the rule is the definition."""
    torch.manual_seed(0)
    f, g = mlp(3, 8, 5), mlp(3, 8, 5, seed=2)
    problem = read_problem(f, g, torch.zeros(1, 3))
    x = 2 * torch.randn(300, 3, dtype=torch.float64)
    claim = TopClass(margin=margin)
    chain = chain_of(problem).of_pairs()
    for bounds in (chain.bounds(x, x), chain.bounds_in_torch(x, x)):
        held = sizes(claim, bounds.ends) <= 0
        assert torch.equal(held, ~disagreements(f, g, x, margin))
        assert 0 < int(held.sum()) < 300 or margin == 1.0
    wrong = claim.violation(*(own(x) for own in problem.own)) > 0
    assert torch.equal(wrong, disagreements(f, g, x, margin))


def test_ties_and_what_is_no_number_prove_nothing():
    claim = TopClass(margin=0.0)
    # f leads with the first output everywhere; g's two outputs are equal.
    tie = torch.tensor([[[1.0], [2.0], [0.0], [0.0], [1.0], [2.0]]], dtype=torch.float64)
    assert float(sizes(claim, tie)) > 0
    less = tie.clone()
    less[0, 2] = 1e-9
    less[0, 3] = 1e-9
    assert float(sizes(claim, less)) <= 0
    assert float(sizes(claim, torch.full_like(tie, math.nan))) == math.inf


def test_a_counterexample_is_climbed_to(monkeypatch):
    """Of many inputs next to none lies where the classes differ; a few steps lead there."""
    f = mlp(60, 30, 30, 4)
    g = moved(f, 1e-4)
    region = box(60, 0.5)
    problem, domain = read_problem(f, g, torch.zeros(1, 60)), box_domain(region, example=None)
    claim = TopClass(margin=0.0)
    found = prover._counterexample(problem, domain, claim)
    assert found is not None and bool(domain.contains(found.unsqueeze(0)))
    assert bool(disagreements(f, g, found.unsqueeze(0), 0.0))
    cert = sc.certify(f, g, box=region, claim="top-1")
    assert cert.answer == "refuted" and torch.equal(cert.claim.counterexample, found)
    assert recheck(cert.to_json(), f, g).holds
    # Beyond any lead of f nothing can be found.
    assert prover._counterexample(problem, domain, TopClass(margin=1e3)) is None
    monkeypatch.setattr(prover, "_CLIMBED", 0)
    assert prover._counterexample(problem, domain, claim) is None


def test_every_ball_has_its_own_parts():
    f = mlp(2, 6, 6, 3)
    g = moved(f, 1e-3)
    x = torch.randn(6, 2)
    cert = sc.certify(f, g, around=x, radius=0.05, claim="top-1", margin=0.02)
    assert cert.answer == "proven" and len(cert.options["parts"]) == 6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"claim": "top-5"}, "choose 'top-1'"),
        ({"claim": "top-1", "margin": -1.0}, "margin=-1.0"),
        ({"claim": "top-1", "margin": math.inf}, "margin=inf"),
        ({"margin": 1.0}, "applies only to claim="),
        ({"claim": "top-1", "target": 0.1}, "one question at a time"),
        ({"claim": "top-1", "rounding": True}, "holds for real arithmetic only"),
    ],
)
def test_questions_that_are_none(options, says):
    f = mlp(2, 3, 2)
    with pytest.raises(ArgumentError, match=says):
        sc.certify(f, f, box=box(2), **options)


def test_outputs_that_are_no_classes():
    f = mlp(2, 3, 1)
    with pytest.raises(ArgumentError, match="2 to 64 classes"):
        sc.certify(f, f, box=box(2), claim="top-1")


def test_points_are_tried_only_where_whole_boxes_are_not_enough(monkeypatch):
    """Beyond the effort a point costs as much as a proof."""
    f, tried = mlp(6, 12, 12, 4), []
    g = moved(f, 0.01)
    search = prover._counterexample

    def counted(*args):
        tried.append(args)
        return search(*args)

    monkeypatch.setattr(prover, "_counterexample", counted)
    ask = {"around": torch.zeros(1, 6), "claim": "top-1", "seconds": 20}
    assert sc.certify(f, g, radius=1e-4, effort=1, **ask).answer == "proven" and not tried
    assert sc.certify(f, g, radius=1e-4, **ask).answer == "proven" and len(tried) == 1
    h = moved(f, 1.0)
    cert = sc.certify(f, h, radius=1.0, effort=1, **ask)
    assert cert.answer == "refuted" and len(tried) == 2
    assert disagreements(f, h, cert.claim.counterexample[None], 0.0).all()


def test_what_whole_boxes_prove_is_kept_where_no_time_is_left(monkeypatch):
    """One of two balls needs cuts, of which there are none."""
    f = mlp(6, 12, 12, 4)
    g, made, cut = moved(f, 0.05), [], prover.split

    def late(*args, **options):
        found = cut(*args, **options)
        made.append(found if not made else replace(found, share=0.0, complete=False))
        return made[-1]

    monkeypatch.setattr(prover, "split", late)
    monkeypatch.setattr(prover, "_counterexample", lambda *args: None)
    lo = torch.zeros(2, 6)
    hi = lo + torch.tensor([[1e-4], [1.0]])
    cert = sc.certify(f, g, box=(lo, hi), claim="top-1", effort=1, seconds=2)
    assert len(made) == 2 and 0 < made[0].share == cert.claim.share < 1
    assert cert.answer == "open"
