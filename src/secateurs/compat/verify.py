"""`verify`: an instance of the verification competition about two networks, answered.

The answer is one of its three words: `unsat` where no input of the box takes the networks further
apart than ε, `sat` with such an input, or `unknown`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from secateurs.certificates.certificate import Certificate
from secateurs.certificates.certify import certify
from secateurs.compat.networks import OnnxNetwork, read_network
from secateurs.compat.vnnlib import Question, read_vnnlib
from secateurs.errors import ArgumentError, DataError, ShipError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyAnswer:
    """What was found.

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
    progress: Callable[[str], None] | None = None,
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
    shape = _shape(files[0], len(question.lo))
    lo, hi = (
        torch.tensor(end, dtype=torch.float64).reshape(1, *shape)
        for end in (question.lo, question.hi)
    )
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
    told = VerifyAnswer(
        answer="unsat" if certificate.answer == "proven" else "unknown",
        question=question,
        certificate=certificate,
        remarks=(question.remark,) if question.remark and claim is None else (),
    )
    if certificate.answer != "refuted":
        return told
    found = certificate.worst_input
    if certificate.claim is not None and certificate.claim.counterexample is not None:
        found = certificate.claim.counterexample
    x = _within(found, lo[0], hi[0])
    outputs = [_replay(path, net, x) for path, net in zip(files, networks, strict=True)]
    if allowed is None:
        confirmed = _classes_differ(files, networks, outputs, margin)
    else:
        confirmed = float((outputs[0].double() - outputs[1].double()).abs().max()) > allowed
    if confirmed:
        return replace(told, answer="sat", witness=(x.flatten(), outputs[0], outputs[1]))
    what = "beyond ε" if claim is None else "of two classes"
    remark = f"an input {what} was found in float64, and not in the networks' own precision"
    return replace(told, remarks=(*told.remarks, remark))


def _allowed(question: Question, epsilon: float | None, instance: str | Path) -> float:
    """ε: the argument if it is given, else from the file."""
    allowed = question.epsilon if epsilon is None else epsilon
    if allowed is None:
        raise ArgumentError(f"{instance} does not say how far outputs may differ: give epsilon.")
    if not 0 < allowed < float("inf"):
        raise ArgumentError(
            f"epsilon={allowed!r}: give a positive number, the largest difference allowed."
        )
    return float(allowed)


def _classes_differ(
    files: tuple[Path, Path], networks: list[nn.Module], outputs: list[Tensor], margin: float
) -> bool:
    """Whether f, by its file's own outputs, leads by more than the margin, and g answers another
    class.
    """
    f, g = (one.double() for one in outputs)
    # Of a softmax, logarithms differ as its inputs do.
    if isinstance(networks[0], OnnxNetwork) and networks[0].returned not in _outputs(files[0]):
        f = f.log()
    chosen = int(f.argmax())
    top = f.topk(2).values
    return bool(top[0] - top[1] > margin) and bool((g > g[chosen]).any())


def _outputs(path: Path) -> list[str]:
    """The names of what an ONNX file returns."""
    import onnx

    return [one.name for one in onnx.load_model(str(path), load_external_data=False).graph.output]


def _shape(path: Path, entries: int) -> tuple[int, ...]:
    """Of one input, without the batch: as the ONNX file says, else flat."""
    if path.suffix != ".onnx":
        return (entries,)
    import onnx

    graph = onnx.load_model(str(path), load_external_data=False).graph
    weights = {one.name for one in graph.initializer}
    given = next(one for one in graph.input if one.name not in weights)
    sizes = tuple(int(d.dim_value) for d in given.type.tensor_type.shape.dim)
    # An open size is written as 0.
    if len(sizes) < 2 or not all(sizes[1:]):
        return (entries,)
    if torch.Size(sizes[1:]).numel() != entries:
        raise DataError(
            f"{path} takes inputs of shape {sizes[1:]}; the instance has {entries} entries."
        )
    return sizes[1:]


def _within(x: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """The nearest numbers of single precision that lie in the box."""
    near = x.float()
    low, high = (torch.full_like(near, end) for end in (-torch.inf, torch.inf))
    near = torch.where(near.double() > hi, torch.nextafter(near, low), near)
    return torch.where(near.double() < lo, torch.nextafter(near, high), near)


def _replay(path: Path, network: nn.Module, x: Tensor) -> Tensor:
    """The output at this input, flat."""
    if path.suffix != ".onnx":
        with torch.no_grad():
            found: Tensor = network(x.unsqueeze(0))
        return found.flatten()
    from secateurs.ship.onnx import session_of

    session = session_of(path)
    given = session.get_inputs()[0]
    # Each file in its own shape, which may be that of one vector, or of rows for the other's image;
    # an open size is a name.
    sizes = [size if isinstance(size, int) else 1 for size in given.shape]
    fits = torch.Size(sizes).numel() == x.numel()
    try:
        (answer,) = session.run(
            None, {given.name: x.reshape(sizes if fits else (1, *x.shape)).numpy()}
        )
    # onnxruntime raises errors of its own for a shape that does not fit.
    except Exception as error:
        raise ShipError(f"onnxruntime cannot run {path} on the witness: {error}.") from None
    return torch.from_numpy(answer).flatten()
