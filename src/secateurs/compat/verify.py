"""`verify`: an instance of the verification competition about two networks, answered.

The answer is one of its three words: `unsat` where no input of the box takes the networks further
apart than ε, `sat` with such an input, or `unknown`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from secateurs.certificates.certificate import Certificate
from secateurs.certificates.certify import certify
from secateurs.compat.networks import read_network
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
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyAnswer:
    """Answer an instance: two networks (.onnx, .nnet) and a VNN-LIB file.

    Args:
        epsilon: where the file does not say (VNN-LIB 1), or to ask for another.
        seconds: the time the proof may take.
        progress: called with a line of text after each step.
    """
    question = read_vnnlib(instance)
    allowed = question.epsilon if epsilon is None else epsilon
    if allowed is None:
        raise ArgumentError(f"{instance} does not say how far outputs may differ: give epsilon.")
    if not 0 < allowed < float("inf"):
        raise ArgumentError(f"epsilon={allowed!r}: the difference allowed is a positive number.")
    files = Path(first), Path(second)
    networks = [read_network(path) for path in files]
    shape = _shape(files[0], len(question.lo))
    lo, hi = (
        torch.tensor(end, dtype=torch.float64).reshape(1, *shape)
        for end in (question.lo, question.hi)
    )
    certificate = certify(
        networks[0],
        networks[1],
        box=(lo, hi),
        target=float(allowed),
        seconds=seconds,
        progress=progress,
    )
    remarks: tuple[str, ...] = (question.remark,) if question.remark else ()
    if certificate.answer == "proven":
        return VerifyAnswer(
            answer="unsat", question=question, certificate=certificate, remarks=remarks
        )
    if certificate.answer == "refuted":
        x = _within(certificate.worst_input, lo[0], hi[0])
        outputs = [_replay(path, net, x) for path, net in zip(files, networks, strict=True)]
        if float((outputs[0].double() - outputs[1].double()).abs().max()) > allowed:
            return VerifyAnswer(
                answer="sat",
                question=question,
                certificate=certificate,
                witness=(x.flatten(), outputs[0], outputs[1]),
                remarks=remarks,
            )
        remarks += (
            "an input beyond ε was found in float64, and not in the networks' own precision",
        )
    return VerifyAnswer(
        answer="unknown", question=question, certificate=certificate, remarks=remarks
    )


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
    try:
        (answer,) = session.run(None, {given.name: x.unsqueeze(0).numpy()})
    # onnxruntime raises errors of its own for a shape that does not fit.
    except Exception as error:
        raise ShipError(f"onnxruntime cannot run {path} on the witness: {error}.") from None
    return torch.from_numpy(answer).flatten()
