"""Certified samples: a bound on the change of logit differences against margins."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, DomainError
from tiny_networks import UShaped, fully_connected, pruned, randomize


@pytest.fixture
def pair(generator):
    dense = randomize(fully_connected().double(), generator)
    return dense, pruned(dense, generator, 0.1)


@pytest.fixture
def x():
    return torch.randn(60, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.1])
def test_certified_inputs_keep_their_class_everywhere_in_the_ball(pair, x, radius):
    """`whole_ball`: at random points and corners of each certified ball both answers are the
    centre's class of f.
    """
    dense, sparse = pair
    cert = sc.certify(dense, sparse, around=x, radius=radius, restarts=0)
    safe = cert.certified(x, whole_ball=True)
    assert safe.sum() > 0
    chosen = dense(x).argmax(1)
    for k in range(200):
        share = torch.rand_like(x) * 2 - 1
        points = x + radius * (share.sign() if k % 2 else share)
        assert bool((sparse(points).argmax(1) == chosen)[safe].all())


def test_at_radius_zero_exactly_the_unchanged_are_certified(pair, x):
    dense, sparse = pair
    cert = sc.certify(dense, sparse, around=x, radius=0.0, restarts=0)
    unchanged = dense(x).argmax(1) == sparse(x).argmax(1)
    assert torch.equal(cert.certified(x), unchanged)
    assert torch.equal(cert.certified(x, whole_ball=True), unchanged)
    assert 0 < cert.certified_share(x) == float(unchanged.double().mean()) < 1


def test_pairs_are_sharper_than_twice_the_bound(pair, x):
    dense, sparse = pair
    cert = sc.certify(dense, sparse, around=x, radius=0.05, restarts=0)
    top = dense(x).topk(2, dim=1).values
    naive = 2 * cert.balls < top[:, 0] - top[:, 1]
    safe = cert.certified(x)
    assert bool((safe | ~naive).all())
    assert safe.sum() > naive.sum()


def test_one_box_serves_all_its_inputs(pair, x):
    dense, sparse = pair
    box = (x.amin(0, keepdim=True), x.amax(0, keepdim=True))
    cert = sc.certify(dense, sparse, box=box, restarts=0)
    safe = cert.certified(x)
    logits = dense(x)
    chosen = logits.argmax(1)
    reach = cert.per_output
    for i in range(len(x)):
        margins = logits[i, chosen[i]] - logits[i]
        others = [j for j in range(3) if j != chosen[i]]
        assert bool(safe[i]) == all(margins[j] > reach[j] + reach[chosen[i]] for j in others)
    own = cert.certified_share(x, radius=0.01)
    assert own >= cert.certified_share(x)


def test_labels_count_only_what_is_right(pair, x):
    dense, sparse = pair
    cert = sc.certify(dense, sparse, around=x, radius=0.01, restarts=0)
    right = dense(x).argmax(1)
    wrong = (right + 1) % 3
    assert (
        cert.certified_share(x, right)
        == cert.certified_share((x, right))
        == cert.certified_share(x)
    )
    assert cert.certified_share(x, wrong) == 0.0
    assert cert.certified_share(
        [(x[:30], right[:30]), (x[30:], right[30:])]
    ) == cert.certified_share(x)


def test_shares_fall_with_the_radius(pair, x):
    cert = sc.certify(*pair, around=x, radius=0.1, restarts=0)
    shares = [cert.certified_share(x, radius=r) for r in (0.0, 0.01, 0.1, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_a_term_for_rounding_costs_little(generator, x):
    dense = randomize(fully_connected(), generator)
    sparse = pruned(dense, generator, 0.1)
    shares = [
        sc.certify(dense, sparse, around=x, radius=0.01, rounding=r, restarts=0).certified_share(x)
        for r in (False, True)
    ]
    assert shares[1] <= shares[0] <= shares[1] + 0.05


def test_errors(pair, x, generator):
    dense, sparse = pair
    cert = sc.certify(dense, sparse, box=(-0.1, 0.1), example=x, restarts=0)
    with pytest.raises(
        DomainError,
        match=r"60 of 60 inputs lie outside the box within \[-0\.1, 0\.1\]",
    ):
        cert.certified_share(x)
    with pytest.raises(
        DomainError, match=r"shape \(4,\), but the certificate is about inputs of shape \(5,\)"
    ):
        cert.certified_share(x[:, :4])
    with pytest.raises(ArgumentError, match="whole_ball needs a ball"):
        cert.certified_share(x * 0, whole_ball=True)
    with pytest.raises(ArgumentError, match="3 labels for 60 inputs"):
        cert.certified_share(x * 0, torch.zeros(3))
    with pytest.raises(DomainError, match="NaN"):
        cert.certified_share(x * torch.nan)
    with pytest.raises(ArgumentError, match="whole_ball needs the method 'linear'"):
        few = sc.certify(dense, sparse, around=x, radius=0.1, methods="interval", restarts=0)
        few.certified_share(x, whole_ball=True)
    maps = randomize(UShaped().double(), generator)
    image = torch.zeros(1, 1, 4, 4)
    with pytest.raises(ArgumentError, match="not logits of at least two classes"):
        sc.certify(maps, copy.deepcopy(maps), around=image, radius=0.1, restarts=0).certified_share(
            image
        )
    single = nn.Linear(5, 1).double()
    with pytest.raises(ArgumentError, match="not logits"):
        sc.certify(single, single, around=x, radius=0.1, restarts=0).certified_share(x)
