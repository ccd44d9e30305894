"""Networks as people write them: the same lines, with one value that comes from somewhere else.

Each family is `value -> function that makes a network`. Equal values make equal networks, and
different ones networks that differ: by their widths, by what their forward does, or in training.
"""

import functools
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, k=1.0, width=8):
        super().__init__()
        self.a, self.b, self.k = nn.Linear(64, width), nn.Linear(width, 10), k

    def forward(self, x):
        return self.b(F.leaky_relu(self.a(x.flatten(1)), 0.1) * self.k)


class Base(nn.Module):
    """A forward that calls what its heirs say."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.b(self.act(self.a(x.flatten(1))))


def closure(k):
    def make():
        return Net(k)

    return make


def closure_of_a_closure(k):
    def act(x):
        return F.leaky_relu(x, k)

    class Inner(Base):
        def forward(self, x):
            return self.b(act(self.a(x.flatten(1))))

    return lambda: Inner()


def partial(k):
    return functools.partial(Net, k=k)


def partial_of_a_function(k):
    def make(k):
        return Net(k)

    return functools.partial(functools.partial(make), k=k)


def default(k):
    return lambda k=k: Net(k)


def keyword_default(k):
    def make(*, k=k, generator=None):
        return Net(k)

    return make


def settings(k):
    config = SimpleNamespace(deep={"k": [k]})
    return lambda: Net(config.deep["k"][0])


def width(k):
    return functools.partial(Net, width=round(10 * k) + 1)


def base_class(k):
    class Middle(Base):
        def act(self, x):
            return F.leaky_relu(x, k)

    class Heir(Middle):
        pass

    return Heir


def class_attribute(k):
    return type("Made", (Base,), {"slope": k, "act": lambda self, x: F.leaky_relu(x, self.slope)})


def method(k):
    class Factory:
        def __init__(self):
            self.k = k

        def make(self):
            return Net(self.k)

    return Factory().make


def callable_object(k):
    class Factory:
        def __init__(self):
            self.k = k

        def __eq__(self, other):  # and therefore without a hash
            return type(self) is type(other)

        def __call__(self):
            return Net(self.k)

    return Factory()


def module_constant(k):
    """The same function of the same module, in which a constant was changed."""
    space = {"Net": Net, "K": k}
    exec("def make():\n    return Net(K)\n", space)
    return space["make"]


def hook(k):
    def make():
        made = Net()
        made.a.register_forward_hook(lambda module, inputs, output: output * k)
        return made

    return make


def start(k):
    def make():
        made = Net()
        nn.init.normal_(made.a.weight, std=k + 0.1)
        return made

    return make


def tensor(k):
    held = torch.full((8,), k)

    class Scaled(Base):
        def act(self, x):
            return x * held

    return Scaled


def only_in_training(k):
    class Noisy(Base):
        def act(self, x):
            return F.dropout(x, k / 4, self.training)

    return Noisy


def only_backwards(k):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * (k + 0.5)

    class Hidden(Base):
        def act(self, x):
            return Half.apply(x)

    return Hidden


def own_precision(k):
    """Cannot run in float64."""

    class Float(Base):
        def act(self, x):
            return F.linear(x.float(), torch.eye(8) * (k + 0.1))

    return Float


FAMILIES = (
    closure, closure_of_a_closure, partial, partial_of_a_function, default, keyword_default,
    settings, width, base_class, class_attribute, method, callable_object, module_constant, hook,
    start, tensor, only_in_training, only_backwards, own_precision,
)  # fmt: skip
