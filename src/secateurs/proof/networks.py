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

from secateurs.base.json_object import quote
from secateurs.base.registry import unknown
from secateurs.errors import DataError, MissingExtra, first_line
from secateurs.proof.vnnlib import lines_of, text_of

Operator = Callable[..., Tensor]
_MOST_BYTES = 2**31
_MOST_ENTRIES = 2**28
_DOMAINS = ("", "ai.onnx")
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
    """An ONNX graph as a module: its weights are parameters, its operators run in order.

    Attributes:
        shape: Of one input without the batch, as the file declares it; None where it leaves a size
            open.
        dtype: Of the input.
        softmax: Whether a softmax at the end was left out.
    """

    def __init__(
        self,
        steps: Sequence["_OnnxStep"],
        weights: Mapping[str, Tensor],
        ends: tuple[str, str],
        *,
        shape: tuple[int, ...] | None,
        dtype: torch.dtype,
        softmax: bool = False,
    ):
        super().__init__()
        self.steps, (self.given, self.returned) = tuple(steps), ends
        self.shape, self.dtype, self.softmax = shape, dtype, softmax
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
    """One operator: what it reads, what it makes, and how; what the file calls it."""

    def __init__(self, run: Operator, reads: Sequence[str], to: str, kind: str) -> None:
        self.run, self.reads, self.to, self.kind = run, tuple(reads), to, kind


def read_onnx(path: str | Path, *, logits: bool = False) -> OnnxNetwork:
    """An ONNX file of one input and one output, of the operators in `_OPERATORS` as opsets 7 to 28
    define them.

    Refused by name: other operators, domains and attributes (so graphs inside nodes), functions of
    the file, weights in other files, and values that do not keep the inputs of a batch apart.

    logits: leave out a softmax at the end.
    """
    path = Path(path)
    try:
        import onnx
    except ImportError:
        raise MissingExtra.of("onnx", extra="onnx") from None
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path} is larger than 2 GB.")
        model = onnx.load_model(str(path), load_external_data=False)
    except DataError:
        raise
    # protobuf and onnx raise internal errors of many types for damaged files.
    except Exception as error:
        raise DataError(f"{path} is not an ONNX file ({type(error).__name__}: {error}).") from None
    opset, graph = _opset_of(model, path), model.graph
    weights: dict[str, Tensor] = {}
    for one in graph.initializer:
        if one.name in weights:
            raise DataError(f"{path} has two weights of the name {one.name!r}.")
        weights[one.name] = _weight(one, f"{path}: the weight {one.name!r}")
    inputs = [one for one in graph.input if one.name not in weights]
    outputs = [one.name for one in graph.output]
    if len(inputs) != 1 or len(outputs) != 1:
        raise DataError(
            f"{path} has {len(inputs)} inputs and {len(outputs)} outputs; exactly one of each is "
            "supported."
        )
    _refuse_strange(graph, path, {"Constant", "Softmax"} if logits else {"Constant"})
    given, returned, softmax = inputs[0].name, outputs[0], False
    dtype, sizes = _declared(inputs[0], path)
    vector = len(sizes) == 1
    steps: list[_OnnxStep] = []
    for node in graph.node:
        where = f"{path}: {node.op_type} {node.name or ''.join(node.output[:1])!r}"
        reads = list(node.input)
        while reads and not reads[-1]:
            reads.pop()  # a value that is left out
        least, most = _READS.get(node.op_type, (1, 1))
        if len(node.output) != 1 or not least <= len(reads) <= most:
            raise DataError(f"{where} takes {len(reads)} values and returns {len(node.output)}.")
        fields = _attributes(node, where)
        to = node.output[0]
        if to in {given, *weights, *(step.to for step in steps)}:
            raise DataError(f"{where} returns {to!r}, which another value of the file is called.")
        if node.op_type == "Constant":
            weights[to] = _weight(fields.get("value"), where)
            continue
        known = {given, *weights, *(step.to for step in steps)}
        missing = [name for name in reads if name not in known]
        if missing:
            raise DataError(f"{where} reads {missing[0]!r}, which no node produces.")
        if node.op_type == "Softmax":
            axis = fields.get("axis", -1 if opset >= 13 else 1)
            # Of a file whose input is one vector, the classes are the only dimension.
            if to != returned or axis not in ((-1, 0) if vector else (-1, 1)):
                raise DataError(f"{where} is supported only as the last node, over the classes.")
            returned, softmax = reads[0], True
            continue
        made = _OPERATORS[node.op_type](fields, [weights.get(name) for name in reads])
        if made is _from_left and not vector:
            made = "multiplies from the left, which is supported only where the input is a vector"
        if vector and node.op_type not in _OF_VECTORS:
            made = "is supported only where inputs have a batch dimension"
        if isinstance(made, str):
            raise DataError(f"{where} {made}.")
        steps.append(_OnnxStep(made, reads, to, node.op_type))
    if returned not in {step.to for step in steps}:
        raise DataError(f"{path}: no node produces the output {returned!r}.")
    shape = sizes if vector else sizes[1:]
    network = OnnxNetwork(
        _with_biases(steps, weights, returned),
        weights,
        (given, returned),
        shape=shape if shape and all(shape) else None,
        dtype=dtype,
        softmax=softmax,
    ).eval()
    if network.shape is not None:
        check_shapes(network, network.shape, path)
    return network


def check_shapes(network: OnnxNetwork, shape: tuple[int, ...], path: Path) -> list[torch.Size]:
    """The shape of every value for one input of this shape, without the batch; a DataError where
    the operators do not fit together, or mix the inputs of a batch. Nothing is computed.
    """
    alone, seven = (_shapes(network, (n, *shape), path) for n in (1, 7))
    if alone != seven:
        raise DataError(f"{path}: what one input gives depends on how many are given at once.")
    return alone


def _shapes(network: OnnxNetwork, shape: tuple[int, ...], path: Path) -> list[torch.Size]:
    # Tables of integers are shapes, whose values count.
    values = {
        name: value.to("meta") if value.is_floating_point() else value
        for name, own in network.names.items()
        for value in [getattr(network, own).detach()]
    }
    values[network.given] = torch.empty(shape, dtype=network.dtype, device="meta")
    shapes = []
    for step in network.steps:
        try:
            found = step.run(*[values[name] for name in step.reads])
        # torch raises errors of many types for shapes that do not fit.
        except Exception as error:
            raise DataError(
                f"{path}: {step.kind}, which makes {step.to!r}, does not run on an input of shape"
                f" {shape} ({first_line(error)})."
            ) from None
        if not found.ndim or len(found) != shape[0] or found[0].numel() > _MOST_ENTRIES:
            raise DataError(
                f"{path}: {step.kind}, which makes {step.to!r}, gives {tuple(found.shape)} for an"
                f" input of shape {shape}: the first size must stay, and one input may give 2^28"
                " values at most."
            )
        values[step.to] = found
        shapes.append(found.shape[1:])
    if network.softmax and values[network.returned].ndim != 2:
        raise DataError(f"{path}: the softmax at the end is not over one row of classes.")
    return shapes


def takes(network: OnnxNetwork, shape: tuple[int, ...], path: Path) -> bool:
    """Whether an input of this shape means the same as one of the declared shape: it is that shape,
    or the input is only ever read by what lays it out anew.
    """
    if network.shape is None or network.shape == shape:
        return bool(check_shapes(network, shape, path))
    readers = [step.kind for step in network.steps if network.given in step.reads]
    return set(readers) <= {"Flatten", "Reshape"} and (
        check_shapes(network, shape, path) == check_shapes(network, network.shape, path)
    )


def _opset_of(model: Any, path: Path) -> int:
    """The version of the operators; what would give them another meaning is refused."""
    if len(model.functions):
        names = ", ".join(sorted({quote(one.name) for one in model.functions})[:3])
        raise DataError(
            f"{path} defines functions of its own ({names}), which are not read. Inline them first"
            " (onnx.inliner.inline_local_functions)."
        )
    versions = [one.version for one in model.opset_import if one.domain in _DOMAINS]
    if len(versions) != 1 or not _OPSETS[0] <= versions[0] <= _OPSETS[1]:
        raise DataError(
            f"{path} uses the operators of opset {', '.join(map(str, versions)) or 'none'};"
            f" those of one from {_OPSETS[0]} to {_OPSETS[1]} are read. Convert it with"
            " onnx.version_converter."
        )
    return int(versions[0])


def _refuse_strange(graph: Any, path: Path, left_out: set[str]) -> None:
    """Operators by their domain and name: a domain gives the same name another meaning."""
    foreign = sorted({n.domain for n in graph.node if n.domain not in _DOMAINS})
    if foreign:
        first = next(n for n in graph.node if n.domain == foreign[0])
        raise DataError(
            f"{path} uses {quote(first.op_type)} of the domain {quote(first.domain)}: only ONNX's"
            " own operators are read."
        )
    strange = sorted({node.op_type for node in graph.node} - {*_OPERATORS, *left_out})
    if strange:
        raise DataError(
            f"{path} uses {', '.join(strange)}; supported are {', '.join(sorted(_OPERATORS))}"
            f"{_SOFTMAX if strange == ['Softmax'] else ''}."
        )


def _declared(given: Any, path: Path) -> tuple[torch.dtype, tuple[int, ...]]:
    """Type and sizes of the input; an open size is 0."""
    from onnx import TensorProto

    kind = given.type.tensor_type
    dtypes = {TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64}
    if kind.elem_type not in dtypes:
        raise DataError(
            f"{path} takes inputs of ONNX's type {kind.elem_type}; float32 and float64 are read."
        )
    sizes = tuple(int(one.dim_value) for one in kind.shape.dim)
    if len(sizes) > 1 and sizes[0] not in (0, 1):
        raise DataError(
            f"{path} takes {sizes[0]} inputs at once (shape {sizes}): the first size must be 1, or"
            " open."
        )
    if any(size < 0 for size in sizes) or math.prod(sizes) > _MOST_ENTRIES:
        raise DataError(f"{path} takes inputs of shape {sizes}.")
    return dtypes[kind.elem_type], sizes


def _weight(proto: Any, where: str) -> Tensor:
    """A tensor that lies in the file itself."""
    from onnx import TensorProto, numpy_helper

    if not isinstance(proto, TensorProto):
        raise DataError(f"{where} has an attribute that cannot be read (no 'value' of a tensor).")
    # What reads them looks in the current folder, and what runs the model beside the file.
    if proto.data_location == TensorProto.EXTERNAL or len(proto.external_data):
        raise DataError(
            f"{where} lies in another file, which is not read. Put all into one:"
            " onnx.save(onnx.load(path), path)."
        )
    try:
        found = torch.from_numpy(np.array(numpy_helper.to_array(proto), copy=True))
    # onnx and numpy raise errors of many types for what is no tensor.
    except Exception as error:
        raise DataError(
            f"{where} cannot be read ({type(error).__name__}: {str(error)[:200]})."
        ) from None
    if found.dtype not in (torch.float32, torch.float64, torch.int64):
        raise DataError(
            f"{where} holds {found.dtype}; float32 and float64 are read, and int64 for shapes."
        )
    return found


def _attributes(node: Any, where: str) -> dict[str, Any]:
    """Attributes by name: those whose meaning is known, each once."""
    import onnx

    fields: dict[str, Any] = {}
    for one in node.attribute:
        if one.name not in _ATTRIBUTES.get(node.op_type, ()) or one.ref_attr_name:
            raise DataError(f"{where} has an attribute {quote(one.name)}, which is not read.")
        if one.name in fields:
            raise DataError(f"{where} has the attribute {quote(one.name)} twice.")
        try:
            fields[one.name] = onnx.helper.get_attribute_value(one)
        # onnx raises errors of its own for an attribute that is none.
        except Exception as error:
            raise DataError(
                f"{where} has an attribute that cannot be read ({type(error).__name__}: {error})."
            ) from None
        if not isinstance(fields[one.name], _ATTRIBUTES[node.op_type][one.name]):
            raise DataError(f"{where}: the attribute {quote(one.name)} has another type.")
    return fields


def _with_biases(
    steps: list[_OnnxStep], weights: Mapping[str, Tensor], returned: str
) -> list[_OnnxStep]:
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
            and last.to != returned
            and readers[last.to] == 1
            and (weight := weights.get(last.reads[last.run is _product])) is not None
            and weight.ndim == 2
        ):
            layer = _linear if last.run is _product else _linear_from_left
            found[-1] = _OnnxStep(layer, (*last.reads, bias), step.to, "Gemm")
        else:
            found.append(step)
    return found


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
    if known[0] is not None or any(one is None for one in known[1:]):
        return "multiplies by something other than weights, which is not supported"
    turned = bool(fields.get("transB"))

    def gemm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.ndim != 2 or weight.ndim != 2 or (bias is not None and bias.ndim > 2):
            raise ValueError("Gemm multiplies matrices")
        weight = weight if turned else weight.T
        if bias is None or bias.shape == weight.shape[:1]:
            return F.linear(x, weight, bias)
        return F.linear(x, weight) + bias

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
    if min(rest, default=0) < -1 or (fields.get("allowzero") and 0 in shape.tolist()):
        return "has sizes below -1, or sizes of 0 that are meant"

    def reshape(x: Tensor, _: Tensor) -> Tensor:
        # A 0 keeps the size that is there.
        return x.reshape(len(x), *(size or x.shape[i] for i, size in enumerate(rest, start=1)))

    return reshape


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
    if not all(one is not None for one in known[1:]) or known[0] is not None:
        return "has a bias that is computed, or no input, which is not supported"
    kernel = list(fields.get("kernel_shape", weight.shape[2:] if weight is not None else []))
    if weight is not None and kernel != list(weight.shape[2:]):
        return f"has a kernel_shape of {kernel} and another kernel"
    options: dict[str, Any] = {
        "stride": tuple(fields.get("strides", (1,) * dims)),
        "padding": tuple(pads[:half]) or (0,) * dims,
        "dilation": tuple(fields.get("dilations", (1,) * dims)),
        "groups": int(fields.get("group", 1)),
    }
    return lambda x, weight, bias=None: function(x, weight, bias, **options)


def _batch_norm(fields: Mapping[str, Any], known: Known) -> Operator | str:
    if fields.get("training_mode") or fields.get("spatial", 1) != 1:
        return "is in training mode, or counts every position as a channel"
    if known[0] is not None or any(one is None for one in known[1:]):
        return "has statistics that are computed, which is not supported"
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
_OF_VECTORS = {"Add", "Identity", "MatMul", "Relu", "Sub"}
"""What means the same for one vector without a batch and for the rows of a batch."""
_ATTRIBUTES: dict[str, dict[str, type]] = {
    "BatchNormalization": {"epsilon": float, "momentum": float, "spatial": int}
    | {"training_mode": int},
    "Constant": {"value": object},
    "Conv": {"auto_pad": bytes, "dilations": list, "group": int, "kernel_shape": list}
    | {"pads": list, "strides": list},
    "Flatten": {"axis": int},
    "Gemm": {"alpha": float, "beta": float, "transA": int, "transB": int},
    "Reshape": {"allowzero": int},
    "Softmax": {"axis": int},
}
"""The attributes whose meaning is known, with their types. Any other (a graph inside a node, too)
gives an operator a meaning that was not read."""
_OPSETS = (7, 28)
"""Of which versions the operators were read: before 7 sums broadcast otherwise, and after 28 nobody
knows."""


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
    lines = lines_of(text_of(path))
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
