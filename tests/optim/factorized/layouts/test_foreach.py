"""The step in torch, for many parameters at once."""

import copy

import torch

from optim.factorized.step.jobs import RULES, jobs
from secateurs.optim.factorized import layouts as batched
from secateurs.optim.factorized.maths import EPS


def test_foreach_leaves_the_look_for_the_dead_to_every_few_steps():
    made = next(jobs(3, torch.float32, RULES["heavy"], sizes=(10,), scale=1e-20))
    made.factors.fill_(1e-14)
    made.momenta.zero_()
    twin = copy.deepcopy(made)
    batched.step_([made], flush=False)
    batched.step_([twin], flush=True)
    assert made.factors.any()
    assert not twin.factors.any()
    assert EPS > 1e-14
