"""`write_proof`: a certificate as a proof that somebody else can check.

`recheck` proves a certificate again with this library. A written proof needs neither it nor torch:
`tools/second_opinion.py`, a file of its own that imports numpy alone, reads the two weight files
and the proof, and bounds the difference again. The proof names the layers by their tensors, the
parts into which the boxes were cut, and for every ReLU whose sign is open the slopes of the planes
between which its values lie. The checker computes the offsets of these planes itself, so that no
slope can make a bound too small.
"""

import base64
import copy
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.progress import Progress, show_progress
from secateurs.errors import ArgumentError, TheoryError, UnsupportedOperation
from secateurs.graph import Graph
from secateurs.graph.primitives import Activation, Add, Affine, Input, Node, Source, State
from secateurs.proof.certificate import Certificate
from secateurs.proof.dense_chain import DenseChain, chain_of
from secateurs.proof.domain import Domain
from secateurs.proof.forms import FIELDS, Bounds
from secateurs.proof.kept import read_parts
from secateurs.proof.methods import both_ends, neuron_cells, relax_with
from secateurs.proof.patches import keeps_order
from secateurs.proof.planes import difference_above, difference_below, relu_below
from secateurs.proof.problem import NetworkPair
from secateurs.proof.record import states_of, write_whole
from secateurs.proof.splitting import Parts, cuttable

FORMAT = "secateurs proof 1"
CLAIM = "|f(x) - g(x)| <= bound, output by output, for every x in the boxes, in real numbers"

_ROOM = 1.01
"""Slopes are written in single precision, and the checker rounds and sums in its own order: a bound
is stated by so much above what is proven here, or parts are cut until it is by so much below.
"""

_DEEPEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProof:
    """What was written.

    Attributes:
        bound: Stated per output.
        parts: Of all boxes together.
        size: Of the file, in bytes.
    """

    bound: Tensor
    parts: int
    size: int


def write_proof(
    certificate: Certificate,
    dense: nn.Module,
    sparse: nn.Module,
    path: str | Path,
    *,
    rounded: Sequence[str] = (),
    progress: Progress | None = None,
) -> WrittenProof:
    """Write the bound of a certificate with what `tools/second_opinion.py` needs to prove it again
    from the two weight files.

    Layers may be linear layers and convolutions without groups or dilation, batch norms, averages
    over whole windows, shifts, flattening, sums of two values and ReLUs. Where the certificate has
    a target, the proof states it; parts that are not proven closely enough are cut further.
    Otherwise it states what is proven, plus a hundredth.

    Args:
        certificate: of `certify`, on boxes or balls.
        dense, sparse: the networks it is about.
        path: of the file.
        rounded: "first", where the file of the first network holds values that are to be rounded to
            bfloat16 before they are used, "second" likewise.
        progress: called with a line of text after each step.
    """
    problem, region = certificate.problem, certificate.region
    if certificate.claim is not None:
        raise ArgumentError("a proof is about the bound; this certificate makes another claim.")
    if dict(certificate.states) != states_of(dense, sparse):
        raise ArgumentError("the certificate is about other weights than those of the networks.")
    if problem.ending is not None:
        raise ArgumentError(
            f"the networks end in a {problem.ending.name}, which a proof does not read: write one"
            " about the networks without it."
        )
    if problem.output is not None:
        raise ArgumentError(f"output={problem.output!r}: a proof is about a model's only output.")
    if list(rounded) not in ([], ["first"], ["second"]):
        raise ArgumentError(f"rounded={rounded!r}: give ['first'], ['second'] or nothing.")
    layers, other = (
        _layers(own.graph, model) for own, model in zip(problem.own, (dense, sparse), strict=True)
    )
    if layers != other:
        raise UnsupportedOperation(
            "write_proof: the networks give their tensors other names, and a proof has one list of"
            " layers for both weight files."
        )
    places = [place for place, layer in enumerate(layers) if layer["op"] == "relu"]
    target = certificate.request.target
    goal = math.inf if target is None or certificate.bound > target else target / _ROOM
    low, high = region.lo.flatten(1), region.hi.flatten(1)
    inputs, trees = low.shape[1], [Parts(cuts=(0,))] * len(low)
    if certificate.request.parts:
        most = cuttable(problem, inputs)
        trees = [read_parts(text, most) for text in certificate.request.parts]
    if any(cut > inputs for tree in trees for cut in tree.cuts):
        raise UnsupportedOperation(
            "write_proof: boxes of this certificate were cut at neurons, and a proof has cuts of"
            " inputs alone; certify without target= and the proof states what is proven."
        )
    prover = _Prover(problem, tuple(region.lo.shape[1:]), len(places))
    with show_progress(progress, "write_proof") as say:
        trees, leaves, bound = prover.prove(low, high, trees, goal, say)
    if not bool(bound.isfinite().all()):
        raise TheoryError("write_proof: the bound is infinite, so there is nothing to prove.")
    x = (region.lo[:1] + region.hi[:1]) / 2
    answers = [_answer(model, x) for model in (dense, sparse)]
    stated = torch.full_like(bound, float(target or 0.0))
    if math.isinf(goal):
        # What is 0 in both networks is 0 to some digits only, summed in another order.
        size = 1 + max(abs(value) for answer in answers for value in answer)
        stated = _ROOM * bound + 1e-6 * bound.amax() + 1e-11 * size
    proof: dict[str, Any] = {
        "format": FORMAT,
        "claim": CLAIM,
        "bound": stated.tolist(),
        "rounded": list(rounded),
        "layers": layers,
        "boxes": {
            "low": _array(region.lo.cpu().numpy(), "<f8"),
            "high": _array(region.hi.cpu().numpy(), "<f8"),
            "cuts": _array(np.array([cut for tree in trees for cut in tree.cuts]), "<u4"),
        },
        "slopes": [
            {"layer": place, "open": _array(open_, "<u1"), "values": _array(values, "<f4")}
            for place, (open_, values) in zip(places, leaves, strict=prover.passes)
        ],
        "example": {"x": x.flatten().tolist(), "first": answers[0], "second": answers[1]},
    }
    text = json.dumps(proof, sort_keys=True, separators=(",", ":"))
    proof["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    content = (json.dumps(proof, indent=1) + "\n").encode()
    write_whole(Path(path), content)
    return WrittenProof(
        bound=stated.reshape(problem.output_shape),
        parts=sum(map(len, trees)),
        size=len(content),
    )


def _answer(model: nn.Module, x: Tensor) -> list[float]:
    """The outputs at one input, in float64 whatever the model's own precision."""
    with torch.no_grad():
        found: Tensor = copy.deepcopy(model).double()(x.double())
    return found.flatten().tolist()


def _array(values: Any, kind: str) -> dict[str, Any]:
    values = np.ascontiguousarray(values, dtype=kind)
    packed = base64.b64encode(zlib.compress(values.tobytes(), 9)).decode()
    return {"shape": list(values.shape), "zlib": packed}


# Layers in the words of the checker.


def _layers(graph: Graph, model: nn.Module) -> list[dict[str, Any]]:
    """The nodes of a network's own graph, whose names are those of its tensors."""
    number, state = dict[str, int](), graph.state(model)
    listed: list[dict[str, Any]] = []
    for place, node in enumerate(graph.nodes):
        number[node.name] = place
        before = [number[name] for name in node.inputs]
        shape = graph.by_name[node.inputs[0]].shape if before else ()
        listed.append({**_words(node, shape, state, model), "from": before})
    if graph.output != graph.nodes[-1].name or len(graph.nodes[-1].shape) != 2:
        raise UnsupportedOperation("write_proof: the output must be a flat value, and come last.")
    return listed


def _words(node: Node, shape: Sequence[int], state: State, model: nn.Module) -> dict[str, Any]:
    if isinstance(node, Input):
        return {"op": "input", "shape": list(node.shape[1:])}
    if isinstance(node, Activation) and node.slope == 0:
        return {"op": "relu"}
    if isinstance(node, Add) and node.signs == (1, 1):
        return {"op": "sum"}
    if keeps_order(node, shape) and len(node.shape) == 2:
        return {"op": "flatten"}
    if isinstance(node, Affine) and len(node.inputs) == 1:
        found = _affine_words(node, shape, state, model)
        if found is not None:
            return found
    raise UnsupportedOperation(
        f"write_proof: {node.place} is nothing that the checker knows. It knows linear layers, "
        "convolutions without groups, batch norms, averages, shifts, flattening, sums and ReLUs; "
        "`recheck` proves any certificate again."
    )


def _affine_words(
    node: Affine, shape: Sequence[int], state: State, model: nn.Module
) -> dict[str, Any] | None:
    window, label = node.operation.sliding, node.operation.label
    bias = None if node.bias is None else node.bias.direct
    named = node.bias is None or bias is not None
    if node.weight is None:
        whole = node.bias is not None and math.prod(node.bias.shape) == math.prod(node.shape)
        return {"op": "shift", "bias": bias} if bias is not None and whole else None
    weight = node.weight.direct
    if label == "linear" and len(node.shape) == 2 and weight is not None and named:
        return {"op": "dense", "weight": weight, "bias": bias}
    if label.startswith("conv2d") and window is not None and weight is not None and named:
        plain = window.groups == 1 and tuple(window.dilation) == (1, 1)
        each = zip(shape[2:], window.kernel, window.stride, window.padding, strict=True)
        # Otherwise one side is padded more than the other.
        plain = plain and [(n + 2 * p - k) // s + 1 for n, k, s, p in each] == list(node.shape[2:])
        sizes = {"stride": list(window.stride), "padding": list(window.padding)}
        return {"op": "conv", "weight": weight, "bias": bias, **sizes} if plain else None
    if label.startswith("average") and window is not None and node.bias is None:
        whole = window.stride == window.kernel and tuple(window.padding) == (0, 0)
        whole = whole and all(n % k == 0 for n, k in zip(shape[2:], window.kernel, strict=True))
        mean = torch.tensor(1 / math.prod(window.kernel), dtype=torch.float64)
        whole = whole and torch.allclose(node.weight(state).double(), mean, rtol=1e-6, atol=0)
        return {"op": "average", "kernel": list(window.kernel)} if whole else None
    if label == "batch_norm":
        norm = model.get_submodule(node.place.module)
        keys = {"weight": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
        held = {**dict(norm.named_parameters()), **dict(norm.named_buffers())}
        names = {k: f"{node.place.module}.{v}" if v in held else None for k, v in keys.items()}
        used = {*node.weight.names, *(node.bias.names if isinstance(node.bias, Source) else ())}
        if used == {name for name in names.values() if name}:
            return {"op": "norm", **names, "eps": float(norm.eps)}  # type: ignore[arg-type]
    return None


# Bounds of parts, and the slopes behind them.


class _Prover:
    """Bounds boxes as the checker does: ranges from intervals and passes from open neurons, or from
    intervals alone where these passes are too many.
    """

    def __init__(self, problem: NetworkPair, shape: tuple[int, ...], relus: int) -> None:
        self.problem, self.shape, self.relus = problem, shape, relus
        self.chain = chain_of(problem)
        self.passes = self.chain is not None or neuron_cells(problem) <= problem.effort
        size = self.chain.numbers_of_a_box if self.chain else 8 * problem.widest
        self.batch = max(1, min(512 if self.chain else 8, 2**22 // size))

    def prove(
        self, low: Tensor, high: Tensor, trees: Sequence[Parts], goal: float, say: Progress
    ) -> tuple[list[Parts], list[tuple[Any, Any]], Tensor]:
        """The trees of all boxes with further cuts where a part is not below the goal; open
        neurons and slopes of every ReLU in the order of the parts; and the largest bounds.
        """
        found: list[Parts] = []
        worst = low.new_zeros(self.problem.outputs)
        slopes: list[list[tuple[Any, Any]]] = [[] for _ in range(self.relus * self.passes)]
        for lo, hi, tree in zip(low, high, trees, strict=True):
            cuts: list[int] = []
            ends = list(tree.boxes(lo, hi))
            subtrees: list[tuple[list[int], list[Any]]] = []
            for start in range(0, len(ends), self.batch):
                some = ends[start : start + self.batch]
                batch = torch.stack([a for a, _ in some]), torch.stack([b for _, b in some])
                subtrees += self._grow(*batch, goal, 0)
                say(f"{start + len(some)} of {len(ends)} parts")
            waiting = iter(subtrees)
            for cut in tree.cuts:
                if cut:
                    cuts.append(cut)
                    continue
                own, leaves = next(waiting)
                cuts += own
                for per_output, rows in leaves:
                    worst = torch.maximum(worst, per_output)
                    for held, row in zip(slopes, rows, strict=True):
                        held.append(row)
            found.append(Parts(cuts=tuple(cuts)))
        joined = [
            (np.stack([bits for bits, _ in rows]), np.concatenate([v for _, v in rows]))
            for rows in slopes
        ]
        return found, joined, worst

    def _grow(
        self, lo: Tensor, hi: Tensor, goal: float, depth: int
    ) -> list[tuple[list[int], list[Any]]]:
        """Of each box: its cuts in preorder, and its leaves with bounds and slopes."""
        per_output, known, promise = self._bound(lo, hi)
        far = per_output.amax(dim=1) > goal
        if bool(far.any()) and depth == _DEEPEST:
            raise TheoryError("write_proof: parts of the domain are not proven as small boxes.")
        rows = self._slopes(known, len(lo)) if self.passes else [()] * len(lo)
        result: list[tuple[list[int], list[Any]]] = [
            ([0], [(per_output[k], rows[k])]) for k in range(len(lo))
        ]
        (again,) = far.nonzero(as_tuple=True)
        if not len(again):
            return result
        along = promise[again].argmax(dim=1)
        middle = (lo[again] + hi[again]) / 2
        below, above = hi[again].clone(), lo[again].clone()
        each = torch.arange(len(again), device=lo.device)
        below[each, along] = above[each, along] = middle[each, along]
        lows = self._grow(lo[again], below, goal, depth + 1)
        highs = self._grow(above, hi[again], goal, depth + 1)
        for k, cut, one, two in zip(again.tolist(), along.tolist(), lows, highs, strict=True):
            result[k] = [cut + 1, *one[0], *two[0]], [*one[1], *two[1]]
        return result

    def _bound(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, list[Bounds], Tensor]:
        """Bounds per output, those of what enters every ReLU, and what cutting each input
        promises.
        """
        if self.chain is not None:
            found = self.chain.bounds(lo, hi)
            known = list(self._of_chain(self.chain, found.known))
            return found.per_output, known, found.influence + 1e-12 * (hi - lo)
        shape = (len(lo), *self.shape)
        domain = Domain(
            lo=lo.reshape(shape),
            hi=hi.reshape(shape),
            center=((lo + hi) / 2).reshape(shape),
            radius=None,
            description="",
        )
        # From intervals, or from every open neuron.
        flow, y = relax_with(self.problem, domain, 1e15 if self.passes else 0.0, None)
        largest = flow.bounds(y).largest.flatten(1).detach()
        if self.passes:
            index = torch.arange(self.problem.outputs, device=lo.device)
            up, down = both_ends(flow, y, index)
            largest = torch.minimum(largest, torch.maximum(up, -down))
        return largest.expand(len(lo), -1), flow.proven, hi - lo

    def _of_chain(self, chain: DenseChain, known: Tensor) -> Iterator[Bounds]:
        widths = [len(layer.bias) for layer in chain.layers[:-1]]
        for layer, ends in zip(chain.layers, torch.split(known, widths, dim=2), strict=False):
            if layer.relu:
                yield Bounds(**dict(zip(FIELDS, ends.unbind(dim=1), strict=True)))

    def _slopes(self, known: Sequence[Bounds], boxes: int) -> list[list[tuple[Any, Any]]]:
        """For each box and ReLU: bits of the neurons whose signs are not settled alike, and their
        six slopes: below relu(z) and relu(z'), above and below the difference.
        """
        found: list[list[tuple[Any, Any]]] = [[] for _ in range(boxes)]
        for ends in known:
            b = ends.each(lambda end: end.detach().flatten(1).expand(boxes, -1))
            open_ = ~(((b.l >= 0) & (b.gl >= 0)) | ((b.h <= 0) & (b.gh <= 0)))
            up, low = difference_above(b), difference_below(b)
            own = relu_below(b.l, b.h).p, relu_below(b.gl, b.gh).p
            slopes = torch.stack([*own, up.p, up.q, low.p, low.q], dim=2).nan_to_num().clamp(-1, 1)
            for box in range(boxes):
                bits = np.packbits(open_[box].cpu().numpy())
                found[box].append((bits, slopes[box][open_[box]].float().cpu().numpy()))
        return found
