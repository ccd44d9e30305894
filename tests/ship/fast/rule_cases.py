"""A case for each rule of the fast path: an operator on an input and some weights.

Most are those of `graph/every_operator.py`. A new rule inherits the laws of `test_rules.py` by an
entry here or there; without one a test fails by its name. A case that the rule refuses
(`NotCovered`) runs in torch and passes whatever the rule does: such a rule needs a case of its own
here.
"""

import torch

from graph.every_operator import CASES as GRAPH_CASES
from graph.every_operator import I, S, V, given
from secateurs.graph.operators import functional
from secateurs.ship.fast.read import RULES

aten = torch.ops.aten


def in_place(operator, *arguments, shape=V):
    """The operator on a value of the network's own: the input must stay."""
    return (lambda x: operator(x * 2.0, *arguments)), shape, ()


OWN = {
    aten.relu_.default: in_place(aten.relu_.default),
    aten.relu6.default: given(aten.relu6.default, shape=I),
    aten.relu6_.default: in_place(aten.relu6_.default),
    aten.leaky_relu_.default: in_place(aten.leaky_relu_.default, 0.2),
    aten.hardtanh.default: given(aten.hardtanh.default, 0.0, 0.5),
    aten.hardtanh_.default: in_place(aten.hardtanh_.default, 0.0, 0.5),
    aten.clamp_.default: in_place(aten.clamp_.default, 0.0, 0.5),
    aten.clamp_min_.default: in_place(aten.clamp_min_.default, 0.0),
    aten.dropout_.default: in_place(aten.dropout_.default, 0.5, False),
    aten.detach_.default: in_place(aten.detach_.default),
    aten.add_.Tensor: (lambda x: aten.add_.Tensor(x * 2.0, x.relu()), V, ()),
    aten.sub_.Tensor: (lambda x, w: aten.sub_.Tensor(x * 2.0, w), V, ((6,),)),
    aten.mul_.Tensor: (lambda x, w: aten.mul_.Tensor(x * 2.0, w), V, ((6,),)),
    aten.div_.Tensor: (lambda x, w: aten.div_.Tensor(x * 2.0, w), V, ((6,),)),
    # Alone it takes a batch of one away, and such a model is refused: the view puts it back.
    aten.squeeze.default: (
        lambda x: aten.squeeze.default(x).reshape(-1, 6),
        (1, 6),
        (),
    ),
    aten.split.default: (
        lambda x: torch.cat(aten.split.default(x, [1, 2], 1)[::-1], 1),
        (3, 4),
        (),
    ),
    aten.constant_pad_nd.default: given(aten.constant_pad_nd.default, [1, 2], shape=S),
}
# The tracer writes another operator instead, whose rule has a case.
UNREACHED = {aten.split.default: aten.split_with_sizes.default}
# With those of operators that write in place, which the rule of what they give reads.
CASES = {
    operator: case
    for operator, case in (GRAPH_CASES | OWN).items()
    if functional(operator) in RULES._rules
}
