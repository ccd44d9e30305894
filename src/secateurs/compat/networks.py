"""Networks in other formats as modules: ONNX files of plain operators, and the text format
`.nnet`."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.compat.vnnlib import text_of
from secateurs.errors import DataError, MissingExtra
from secateurs.registry import unknown

Operator = Callable[..., Tensor]
_MOST_BYTES = 2**31
_SOFTMAX = " (one at the end is left out where classes are compared: logits=True)"


def read_network(path: str | Path, *, logits: bool = False) -> nn.Module:
    """The network in a file, by its suffix: .onnx or .nnet.

    logits: leave out a softmax at the end of an ONNX file, which changes no order of classes.
    """
    path = Path(path)
    known = [".onnx", ".nnet"]
    if path.suffix not in known:
        raise DataError(f"{path}: {unknown('format of networks', path.suffix, known)}")
    if not path.is_file():
        raise DataError(f"{path} cannot be read: there is no such file.")
    return read_onnx(path, logits=logits) if path.suffix == ".onnx" else read_nnet(path)


class OnnxNetwork(nn.Module):
    """An ONNX graph as a module: its weights are parameters, its operators run in order."""

    def __init__(
        self, steps: Sequence["_OnnxStep"], weights: Mapping[str, Tensor], ends: tuple[str, str]
    ):
        super().__init__()
        self.steps, (self.given, self.returned) = tuple(steps), ends
        # Names in files hold dots and slashes, which names of parameters may not.
        self.names = {name: f"w{i}" for i, name in enumerate(weights)}
        for name, value in weights.items():
            if value.is_floating_point():
                self.register_parameter(self.names[name], nn.Parameter(value))
            else:
                self.register_buffer(self.names[name], value)

    def forward(self, x: Tensor) -> Tensor:
        values = {name: getattr(self, own) for name, own in self.names.items()}
        values[self.given] = x
        for step in self.steps:
            values[step.to] = step.run(*[values[name] for name in step.reads])
        found: Tensor = values[self.returned]
        return found


class _OnnxStep:
    """One operator: what it reads, what it makes, and how."""

    def __init__(self, run: Operator, reads: Sequence[str], to: str) -> None:
        self.run, self.reads, self.to = run, tuple(reads), to


def read_onnx(path: str | Path, *, logits: bool = False) -> OnnxNetwork:
    """An ONNX file of one input and one output, of the operators in `_OPERATORS`; others are
    refused by name.

    logits: leave out a softmax at the end.
    """
    path = Path(path)
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise MissingExtra.of("onnx", extra="onnx") from None
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path} is larger than 2 GB.")
        # External weights would be read from any path that the file names.
        graph = onnx.load_model(str(path), load_external_data=False).graph
        weights = {one.name: _tensor(numpy_helper.to_array(one)) for one in graph.initializer}
    except DataError:
        raise
    # protobuf and onnx raise internal errors of many types for damaged files.
    except Exception as error:
        raise DataError(f"{path} is not an ONNX file ({type(error).__name__}: {error}).") from None
    inputs = [one.name for one in graph.input if one.name not in weights]
    outputs = [one.name for one in graph.output]
    if len(inputs) != 1 or len(outputs) != 1:
        raise DataError(
            f"{path} has {len(inputs)} inputs and {len(outputs)} outputs; exactly one of each is "
            "supported."
        )
    left_out = {"Constant", "Softmax"} if logits else {"Constant"}
    strange = sorted({node.op_type for node in graph.node} - {*_OPERATORS, *left_out})
    if strange:
        raise DataError(
            f"{path} uses {', '.join(strange)}; supported are {', '.join(sorted(_OPERATORS))}"
            f"{_SOFTMAX if strange == ['Softmax'] else ''}."
        )
    (vector,) = (
        len(one.type.tensor_type.shape.dim) == 1 for one in graph.input if one.name in inputs
    )
    steps: list[_OnnxStep] = []
    for node in graph.node:
        reads = [name for name in node.input if name]
        least, most = _READS.get(node.op_type, (1, 1))
        if len(node.output) != 1 or not least <= len(reads) <= most:
            raise DataError(
                f"{path}: {node.op_type} {node.name!r} takes {len(reads)} values and returns "
                f"{len(node.output)}."
            )
        try:
            fields = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                weights[node.output[0]] = _tensor(numpy_helper.to_array(fields["value"]))
                continue
        # onnx and numpy raise errors of their own for an attribute that is none.
        except Exception as error:
            raise DataError(
                f"{path}: {node.op_type} {node.name or node.output[0]!r} has an attribute that"
                f" cannot be read ({type(error).__name__}: {error})."
            ) from None
        known = {inputs[0], *weights, *(step.to for step in steps)}
        missing = [name for name in reads if name not in known]
        if missing:
            raise DataError(f"{path}: {node.op_type} reads {missing[0]!r}, which no node produces.")
        if node.op_type == "Softmax":
            # Axis 1 is the usual one of old files, -1 of new ones.
            if node.output[0] != outputs[0] or fields.get("axis", 1) not in (1, -1):
                raise DataError(
                    f"{path}: Softmax {node.name!r} is supported only as the last node, over the "
                    "classes."
                )
            outputs = [reads[0]]
            continue
        made = _OPERATORS[node.op_type](fields, [weights.get(name) for name in reads])
        if made is _from_left and not vector:
            made = "multiplies from the left, which is supported only where the input is a vector"
        if isinstance(made, str):
            raise DataError(f"{path}: {node.op_type} {node.name or node.output[0]!r} {made}.")
        steps.append(_OnnxStep(made, reads, node.output[0]))
    if outputs[0] not in {step.to for step in steps}:
        raise DataError(f"{path}: no node produces the output {outputs[0]!r}.")
    return OnnxNetwork(_with_biases(steps, weights), weights, (inputs[0], outputs[0])).eval()


def _with_biases(steps: list[_OnnxStep], weights: Mapping[str, Tensor]) -> list[_OnnxStep]:
    """A product and the sum that follows it as one layer, as linear layers are read."""
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.reads:
            readers[name] = readers.get(name, 0) + 1
    found: list[_OnnxStep] = []
    for step in steps:
        last = found[-1] if found else None
        bias = next((n for n in step.reads if n in weights and weights[n].ndim == 1), None)
        if (
            last is not None
            and (last.run is _product or last.run is _from_left)
            and step.run is torch.add
            and bias is not None
            and last.to in step.reads
            and readers[last.to] == 1
            and (weight := weights.get(last.reads[last.run is _product])) is not None
            and weight.ndim == 2
        ):
            layer = _linear if last.run is _product else _linear_from_left
            found[-1] = _OnnxStep(layer, (*last.reads, bias), step.to)
        else:
            found.append(step)
    return found


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, copy=True))


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight.T, bias)


def _from_left(weight: Tensor, x: Tensor) -> Tensor:
    """Wx of a file whose input is one vector: here vectors are the rows of a batch."""
    return F.linear(x, weight)


def _linear_from_left(weight: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


# Each function makes an operator from its attributes and its known inputs (None for those that are
# computed), or raises with what is not supported.

Known = Sequence[Tensor | None]


def _gemm(fields: Mapping[str, Any], known: Known) -> Operator | str:
    if fields.get("alpha", 1.0) != 1 or fields.get("beta", 1.0) != 1 or fields.get("transA"):
        return "scales its product or transposes its input, which is not supported"
    turned = bool(fields.get("transB"))

    def gemm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight if turned else weight.T, bias)

    return gemm


def _matmul(fields: Mapping[str, Any], known: Known) -> Operator | str:
    first, second = known
    if first is not None and second is None:
        if first.ndim != 2:
            return (
                "multiplies from the left by something other than a matrix, which is not supported"
            )
        return _from_left
    return _product


def _flatten(fields: Mapping[str, Any], known: Known) -> Operator | str:
    if fields.get("axis", 1) != 1:
        return "flattens across the batch, which is not supported"
    return lambda x: x.flatten(1)


def _reshape(fields: Mapping[str, Any], known: Known) -> Operator | str:
    shape = known[1] if len(known) == 2 else None
    if shape is None or shape.ndim != 1 or not len(shape) or int(shape[0]) not in (0, 1, -1):
        return "changes the batch size or computes the shape, which is not supported"
    rest = [int(size) for size in shape[1:]]
    if int(shape[0]) == -1 and -1 in rest:
        return "has two free sizes"
    return lambda x, _: x.reshape(len(x), *rest)


def _conv(fields: Mapping[str, Any], known: Known) -> Operator | str:
    pads = list(fields.get("pads", []))
    half = len(pads) // 2
    if fields.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"") or pads[:half] != pads[half:]:
        return "pads its sides differently, which is not supported"
    weight = known[1]
    dims = weight.ndim - 2 if weight is not None else 0
    if dims not in (1, 2):
        return (
            "has a kernel that is computed, or neither one- nor two-dimensional, which is not "
            "supported"
        )
    function = F.conv1d if dims == 1 else F.conv2d
    options: dict[str, Any] = {
        "stride": tuple(fields.get("strides", (1,) * dims)),
        "padding": tuple(pads[:half]) or (0,) * dims,
        "dilation": tuple(fields.get("dilations", (1,) * dims)),
        "groups": int(fields.get("group", 1)),
    }
    return lambda x, weight, bias=None: function(x, weight, bias, **options)


def _batch_norm(fields: Mapping[str, Any], known: Known) -> Operator | str:
    if fields.get("training_mode"):
        return "is in training mode"
    epsilon = float(fields.get("epsilon", 1e-5))
    return lambda x, scale, bias, mean, var: F.batch_norm(x, mean, var, scale, bias, eps=epsilon)


def _plainly(function: Operator) -> Callable[[Mapping[str, Any], Known], Operator | str]:
    return lambda fields, known: function


def _same(x: Tensor) -> Tensor:
    return x


_OPERATORS: dict[str, Callable[[Mapping[str, Any], Known], Operator | str]] = {
    "Add": _plainly(torch.add),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "Identity": _plainly(_same),
    "MatMul": _matmul,
    "Relu": _plainly(torch.relu),
    "Reshape": _reshape,
    "Sub": _plainly(torch.sub),
}
_READS = {
    "Add": (2, 2),
    "BatchNormalization": (5, 5),
    "Constant": (0, 0),
    "Conv": (2, 3),
    "Gemm": (2, 3),
    "MatMul": (2, 2),
    "Reshape": (2, 2),
    "Sub": (2, 2),
}
"""How many values each reads, at least and at most; the others read one."""


class NnetNetwork(nn.Module):
    """A network of `.nnet`: inputs normalised, layers and ReLUs, one scale of the outputs."""

    def __init__(
        self, layers: Sequence[tuple[Tensor, Tensor]], mean: Tensor, span: Tensor, scale: Tensor
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for weight, bias in layers:
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.layers.append(layer)
        for name, value in (("mean", mean), ("span", span), ("scale", scale)):
            self.register_buffer(name, value)

    mean: Tensor
    span: Tensor
    scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.span
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        found: Tensor = self.layers[-1](x) * self.scale[1] + self.scale[0]
        return found


def read_nnet(path: str | Path) -> NnetNetwork:
    """A `.nnet` file (Julian 2016): comments, sizes, ranges of inputs, means, spans, and layers row
    by row. Weights are float32, as those who wrote them trained them."""
    path = Path(path)
    lines = text_of(path).splitlines()
    rows = iter([(n, text) for n, text in enumerate(lines, 1) if not text.startswith("//")])
    number = 0

    def numbers(count: int | None = None, *, endless: bool = False) -> list[float]:
        nonlocal number
        number, text = next(rows, (len(lines), ""))
        try:
            found = [float(word) for word in text.replace(",", " ").split()]
        except ValueError:
            raise DataError(
                f"{path}, line {number}: {text[:60]!r} is not a list of numbers."
            ) from None
        finite = all(map(math.isfinite, found)) or endless
        if not finite or (count is not None and len(found) < count):
            wanted = "finite numbers" if count is None else f"{count} finite numbers"
            raise DataError(f"{path}, line {number}: expected {wanted}, got {len(found)}.")
        return found if count is None else found[:count]

    depth, ins = (int(value) for value in numbers(2))
    sizes = [int(size) for size in numbers(depth + 1)] if 0 < depth < 1000 else []
    if not sizes or min(sizes) < 1 or max(sizes) > 2**16 or sizes[0] != ins:
        raise DataError(f"{path}, line {number}: the file states {depth} layers of {sizes} units.")
    numbers()  # a flag that nobody uses
    # The ranges of the inputs, which may have no end: users give their own box.
    numbers(endless=True), numbers(endless=True)
    means, spans = numbers(ins + 1), numbers(ins + 1)
    if 0 in spans[:ins]:
        raise DataError(f"{path}, line {number}: an input is divided by zero.")
    layers = []
    for before, after in itertools.pairwise(sizes):
        weight = torch.tensor([numbers(before) for _ in range(after)])
        bias = torch.tensor([numbers(1)[0] for _ in range(after)])
        layers.append((weight, bias))
    after_the_last = next(((n, text) for n, text in rows if text.strip()), None)
    if after_the_last is not None:
        # Sizes that say less than the file holds belong to another network.
        number, text = after_the_last
        raise DataError(f"{path}, line {number}: {text[:60]!r} comes after the last layer.")
    return NnetNetwork(
        layers,
        torch.tensor(means[:ins]),
        torch.tensor(spans[:ins]),
        torch.tensor([means[ins], spans[ins]]),
    ).eval()
