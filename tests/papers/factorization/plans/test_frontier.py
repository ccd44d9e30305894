"""How the runs of the factorization paper are written down."""

from experiments.experiment import Comparison
from experiments.factorization.plans import _span


def test_a_spread_stands_where_there_are_several_seeds():
    assert _span(Comparison(what="a", ours=(84.0, 86.5, 88.0))) == "86.167 (84 to 88)"
    assert _span(Comparison(what="a", ours=(84.0,))) == "84"
