"""`verify`: an instance of the verification competition about two networks, answered.

The answer is one of its three words: `unsat` where no input of the box takes the networks further
apart than ε, `sat` with such an input, or `unknown`.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from secateurs.base.progress import Progress
from secateurs.errors import ArgumentError, DataError, MissingExtra, ShipError
from secateurs.proof.certificate import Certificate
from secateurs.proof.certify import certify
from secateurs.proof.networks import OnnxNetwork, read_network, takes
from secateurs.proof.vnnlib import Question, read_vnnlib


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyAnswer:
    """The answer to a VNN-LIB instance, with its evidence.

    Attributes:
        answer: In the words of the competition.
        question: As read from the file.
        certificate: With the bound, also where the answer is `unknown`.
        witness: For `sat`: the input and both outputs as onnxruntime gives them (torch, for a file
            that is not ONNX), flat.
        remarks: Remarks for readers of the answer.
    """

    answer: Literal["unsat", "sat", "unknown"]
    question: Question
    certificate: Certificate
    witness: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The answer, then the witness entry by entry."""
        if self.witness is None:
            return self.answer
        rows = [
            f"({name}[{i}] {value:.9g})"
            for name, values in zip(self.question.names, self.witness, strict=True)
            for i, value in enumerate(values.tolist())
        ]
        return "\n".join([self.answer, "(" + "\n ".join(rows) + ")"])


def verify(
    first: str | Path,
    second: str | Path,
    instance: str | Path,
    *,
    epsilon: float | None = None,
    claim: Literal["top-1"] | None = None,
    margin: float = 0.0,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> VerifyAnswer:
    """Answer an instance: two networks (.onnx, .nnet) and a VNN-LIB file.

    Args:
        epsilon: where the file does not say (VNN-LIB 1), or to ask for another.
        claim: "top-1" asks another question on the box of the file, whether both networks answer
            the same class; a softmax at the end of a file is left out.
        margin: of the claim, see `certify`: how far f has to lead. A softmax above p means a lead
            of more than ln(p / (1 − p)).
        seconds: the time the proof may take.
        progress: called with a line of text after each step.
    """
    question = read_vnnlib(instance)
    files = Path(first), Path(second)
    networks = [read_network(path, logits=claim is not None) for path in files]
    shape = _shape(files, networks, len(question.lo))
    lo, hi = (
        torch.tensor(end, dtype=torch.float64).reshape(1, *shape)
        for end in (question.lo, question.hi)
    )
    double = all(isinstance(one, OnnxNetwork) and one.dtype == torch.float64 for one in networks)
    box = _inner(question, shape, torch.float64 if double else torch.float32)
    runs = [_runner(path, net) for path, net in zip(files, networks, strict=True)]
    for path, network, run in zip(files, networks, runs, strict=True):
        _refuse_misread(path, network, run, question, *(end.nan_to_num() for end in box))
    allowed = None if claim is not None else _allowed(question, epsilon, instance)
    if claim is not None and epsilon is not None:
        raise ArgumentError(
            f"claim={claim!r} with epsilon={epsilon!r}: ask one question at a time."
        )
    certificate = certify(
        networks[0],
        networks[1],
        box=(lo, hi),
        target=allowed,
        claim=claim,
        margin=margin,
        seconds=seconds,
        progress=progress,
    )
    remark = question.remark
    if claim is not None and question.outputs is not None:
        remark = "the conditions on outputs in the file were not asked: the claim was"
    told = VerifyAnswer(
        answer="unknown",
        question=question,
        certificate=certificate,
        remarks=(remark,) if remark else (),
    )
    if certificate.answer == "proven":
        return replace(told, answer="unsat", remarks=(*told.remarks, _OF_REALS))
    # Also where rounding might be the reason in real numbers: what counts is what the networks
    # themselves answer there.
    found = certificate.worst_input
    if certificate.claim is not None and certificate.claim.counterexample is not None:
        found = certificate.claim.counterexample
    refuted = certificate.answer == "refuted"
    if found is None or not (refuted or claim is None):
        return told
    x = _nearest(found, *box)
    kind = "float64" if double else "float32"
    beside = int(box[0].isnan().sum())
    if beside and not refuted:
        return told
    if not x.isfinite().all():
        remark = f"an input was found among the real numbers, but no {kind} is near it"
        return replace(told, remarks=(*told.remarks, remark))
    f, g = outputs = [run(x) for run in runs]
    if allowed is None:
        confirmed = _classes_differ(networks, outputs, margin)
    else:
        confirmed = float((f.double() - g.double()).abs().max()) > allowed
    if confirmed:
        remarks = (*told.remarks, _OF_FLOATS.format(kind))
        if beside:
            remarks = (*remarks, _BESIDE.format(beside, x.numel(), kind))
        return replace(told, answer="sat", witness=(x.flatten(), f, g), remarks=remarks)
    if not refuted:
        return told
    what = "beyond ε" if claim is None else "of two classes"
    remark = f"an input {what} was found in float64, and not in the networks' own precision"
    return replace(told, remarks=(*told.remarks, remark))


_OF_REALS = (
    "unsat speaks of both networks in real numbers; what a computer answers differs from them by"
    " its rounding"
)
_OF_FLOATS = "sat speaks of {}: both outputs are what a computer answered at the input"
_BESIDE = (
    "in {} of {} entries no {} lies in the box: there the witness has the nearest one, and"
    " evaluated in float64 the networks differ within the last digit of the box as well"
)


def _allowed(question: Question, epsilon: float | None, instance: str | Path) -> float:
    """ε: the argument if it is given, else from the file."""
    allowed = question.epsilon if epsilon is None else epsilon
    if allowed is None:
        raise ArgumentError(f"{instance} does not say how far outputs may differ: give epsilon.")
    if not 0 < allowed < float("inf"):
        raise ArgumentError(
            f"epsilon={allowed!r}: give a positive number, the largest difference allowed."
        )
    # No float64 lies between the two: a difference above this one has reached ε.
    reached = epsilon is None and question.reached
    return math.nextafter(allowed, 0.0) if reached else float(allowed)


def _classes_differ(networks: list[nn.Module], outputs: list[Tensor], margin: float) -> bool:
    """Whether f, by its file's own outputs, leads by more than the margin, and g answers another
    class.
    """
    f, g = (one.double() for one in outputs)
    # Of a softmax, logarithms differ as its inputs do.
    if isinstance(networks[0], OnnxNetwork) and networks[0].softmax:
        f = f.log()
    chosen = int(f.argmax())
    top = f.topk(2).values
    return bool(top[0] - top[1] > margin) and bool((g > g[chosen]).any())


def _shape(files: tuple[Path, Path], networks: list[nn.Module], entries: int) -> tuple[int, ...]:
    """Of one input, without the batch: as the first ONNX file that says it, else flat."""
    read = [(p, n) for p, n in zip(files, networks, strict=True) if isinstance(n, OnnxNetwork)]
    for path, network in read:
        if network.shape is not None and math.prod(network.shape) != entries:
            raise DataError(
                f"{path} takes inputs of shape {network.shape}; the instance has {entries} entries."
            )
    shape = next((one.shape for _, one in read if one.shape is not None), (entries,))
    for path, network in read:
        if not takes(network, shape, path):
            raise DataError(
                f"{path} takes inputs of shape {network.shape}, which mean another thing than the"
                f" {shape} of the other network."
            )
    return shape


def _inner(question: Question, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The least and the largest number of a dtype in the box, by entry; NaN where none lies in
    it.
    """
    lo, hi = (torch.tensor(end, dtype=torch.float64) for end in (question.lo, question.hi))
    least, most = lo.to(dtype), hi.to(dtype)
    open_lo, open_hi = (
        torch.tensor([i in entries for i in range(len(lo))])
        for entries in (question.open_lo, question.open_hi)
    )
    up, down = (torch.full_like(least, end) for end in (torch.inf, -torch.inf))
    # In float64, which holds every number of the dtype.
    outside = (least.double() < lo) | (open_lo & (least.double() == lo))
    least = torch.where(outside, torch.nextafter(least, up), least)
    outside = (most.double() > hi) | (open_hi & (most.double() == hi))
    most = torch.where(outside, torch.nextafter(most, down), most)
    none = (least > most) | least.isinf() | most.isinf()
    least, most = (end.masked_fill(none, torch.nan).reshape(shape) for end in (least, most))
    return least, most


def _nearest(x: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """The nearest input in the box, whose ends are of the networks' own precision; in an entry of
    which no such number lies in the box, as in one fixed at 0.1, the nearest number.
    """
    own = x.reshape(least.shape).to(least.dtype)
    return torch.where(least.isnan(), own, own.clamp(least, most))


def _refuse_misread(
    path: Path,
    network: nn.Module,
    run: Callable[[Tensor], Tensor],
    question: Question,
    least: Tensor,
    most: Tensor,
) -> None:
    """Compare a network as read here with what onnxruntime makes of its file, at five inputs of the
    box, and its outputs with those that the question declares.
    """
    exact = copy.deepcopy(network).double()
    own = network.dtype if isinstance(network, OnnxNetwork) else torch.float32
    steps = torch.arange(least.numel(), dtype=least.dtype).reshape(least.shape)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        # Neither all entries alike nor at their ends only.
        x = least + (most - least) * ((share + steps * 0.618) % 1)
        theirs = run(x).double()
        with torch.no_grad():
            ours, true = (
                one(x.unsqueeze(0).to(dtype)).flatten().double()
                for one, dtype in ((network, own), (exact, torch.float64))
            )
        if question.outputs not in (None, true.numel()):
            raise DataError(
                f"{path} returns {true.numel()} values; the instance declares {question.outputs}."
            )
        if not true.isfinite().all():
            raise DataError(f"{path} answers NaN or infinite values at an input of the box.")
        if not ours.isfinite().all():
            continue  # beyond the range of single precision, of which nothing is claimed
        if isinstance(network, OnnxNetwork) and network.softmax:
            ours, true = ours.softmax(0), true.softmax(0)
        # As far as rounding goes, which is known by our own.
        scale = max(1.0, float(true.abs().max())) * 1e-4
        far = 100 * float((ours - true).abs().max()) + scale
        if theirs.shape != true.shape or not torch.allclose(
            theirs, true, rtol=0, atol=far, equal_nan=True
        ):
            raise DataError(
                f"{path} is read otherwise than onnxruntime reads it: at one input of the box they"
                f" answer {true[:3].tolist()} and {theirs[:3].tolist()}."
            )


def _runner(path: Path, network: nn.Module) -> Callable[[Tensor], Tensor]:
    """What makes the flat output of one input, as onnxruntime does where the file is ONNX."""
    if not isinstance(network, OnnxNetwork):
        return lambda x: network(x.unsqueeze(0)).flatten().detach()
    from secateurs.base.onnx_session import session_of

    try:
        session = session_of(path)
    except ImportError:
        raise MissingExtra.of("onnxruntime", extra="onnx") from None
    given, dtype = session.get_inputs()[0], network.dtype
    # Each file in its own shape, which may be that of one vector, or of rows for the other's image;
    # an open size is a name.
    sizes = [size if isinstance(size, int) else 1 for size in given.shape]

    def run(x: Tensor) -> Tensor:
        shape = sizes if math.prod(sizes) == x.numel() else (1, *x.shape)
        try:
            (answer,) = session.run(None, {given.name: x.to(dtype).reshape(shape).numpy()})
        # onnxruntime raises errors of its own for a shape that does not fit.
        except Exception as error:
            raise ShipError(
                f"onnxruntime cannot run {path} on an input of the box: {error}."
            ) from None
        return torch.from_numpy(answer).flatten()

    return run
