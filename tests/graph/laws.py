"""What every flow keeps: laws as functions, over any network and any way to feed it."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graph.flows import METHODS, Case, Setting
from secateurs.graph import propagate


def carried(case: Case, setting: Setting, flow: Any = None) -> tuple[Any, Any]:
    """A flow and what it gives at the output."""
    own = case.make(setting) if flow is None else flow
    graph = case.graph(setting)
    fed = [case.feed(setting)] * len(graph.inputs)
    return own, propagate(graph, own, fed, case.params(setting))


def assert_repeatable(case: Case, setting: Setting) -> None:
    """Two runs give the same bits."""
    first, second = (list(tensors(carried(case, setting)[1])) for _ in range(2))
    assert len(first) == len(second)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)


def assert_leaves_alone_what_it_is_given(case: Case, setting: Setting) -> None:
    """No method writes into a value, a weight or an input.

    A value that two nodes read would reach the second one changed.
    """
    watched = _Watched(case.make(setting))
    before = [t.clone() for t in tensors(setting.state)]
    carried(case, setting, watched)
    assert watched.called, "no method of the flow was called"
    assert not watched.changed, f"{watched.changed} wrote into what they were given"
    assert all(map(torch.equal, before, tensors(setting.state)))


class _Watched:
    """A flow whose methods are looked over the shoulder."""

    def __init__(self, flow: Any) -> None:
        self.flow, self.changed, self.called = flow, set(), set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.flow, name)
        if name not in METHODS:
            return method

        def call(node: Any, given: Any, *params: Any) -> Any:
            self.called.add(name)
            before = [t.clone() for t in tensors((given, params))]
            result = method(node, given, *params)
            if not all(map(_same, before, tensors((given, params)))):
                self.changed.add(name)
            return result

        return call


def _same(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one, two) or bool(torch.allclose(one, two, 0, 0, equal_nan=True))


def equals_the_model(case: Case, setting: Setting) -> None:
    """An ordinary value is what the model computes."""
    flow, value = carried(case, setting)
    found = case.read(flow, value)
    expected = setting.outputs(setting.dense, setting.x[:1].unsqueeze(0))
    torch.testing.assert_close(found.flatten(), expected.flatten())


def bounds_outputs(case: Case, setting: Setting) -> None:
    """|f(x)| ≤ value · max(1, ‖x‖_∞) for every output."""
    flow, value = carried(case, setting)
    bound = case.read(flow, value).flatten()
    points = setting.samples
    scale = points.abs().flatten(2).amax(dim=2, keepdim=True).clamp_min(1)
    assert_above(bound * scale, setting.outputs(setting.dense, points).abs())


def bounds_differences_by_the_norm(case: Case, setting: Setting) -> None:
    """|f(x) − g(x)| ≤ value · max(1, ‖x‖_∞) for every output; g is f with weights set to zero."""
    flow, value = carried(case, setting)
    bound = case.read(flow, value).flatten()
    points = setting.samples
    scale = points.abs().flatten(2).amax(dim=2, keepdim=True).clamp_min(1)
    assert_above(bound * scale, differences(setting))


def bounds_differences_on_balls(case: Case, setting: Setting) -> None:
    """|f(x) − g(x)| ≤ value, ball by ball and output by output."""
    flow, value = carried(case, setting)
    bound = case.read(flow, value).detach().reshape(len(setting.x), -1)
    assert_above(bound, differences(setting))


def covers_rounding(case: Case, setting: Setting) -> None:
    """What float32 computes lies within the value of what float64 computes."""
    flow, value = carried(case, setting)
    error = case.read(flow, value).reshape(len(setting.x), -1)
    points = setting.samples.float().double()
    exact = setting.outputs(setting.dense, points)
    single = copy.deepcopy(setting.dense).float()
    coarse = setting.outputs(single, points.float()).double()
    assert_above(error, (exact - coarse).abs())


def describes(case: Case, setting: Setting) -> None:
    """The flow says something other than numbers of outputs: it has come to the end."""
    assert carried(case, setting)[1] is not None


def differences(setting: Setting) -> Tensor:
    """|f − g| at the samples."""
    dense, sparse = (
        setting.outputs(model, setting.samples) for model in (setting.dense, setting.sparse)
    )
    return (dense - sparse).abs()


def assert_above(bound: Tensor, found: Tensor) -> None:
    """Up to the rounding of float64."""
    assert bool((found <= bound * (1 + 1e-9) + 1e-12).all()), (
        f"{float((found - bound).max()):.3g} above the bound"
    )
    # A claim that holds for everything would be none.
    assert bool(bound.isfinite().all())


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, in a fixed order."""
    if isinstance(value, Tensor):
        yield value.detach()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
