"""Certificates written as proofs, and the second opinion on them (tools/second_opinion.py).

    python benchmarks/written_proofs.py acasxu PATH [--seeds 1 50] [--seconds 100] [--out FILE]
    python benchmarks/written_proofs.py zoo --folder FOLDER

acasxu  PATH is a checkout of lukasmrohwer/acasxu-benchmark. For each seed its pair is bounded by
        `certify(target=0.05)`, written, and proven again by a process that sees the proof and two
        weight files; a row has sizes and seconds of processor, those of `recheck` beside them.
zoo     writes the proof of every record of the laboratory into FOLDER, with the same columns.
"""

import argparse
import copy
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.proof import recheck, write_proof
from secateurs.proof.kept import boxes_of_record, read_record
from secateurs.proof.networks import read_network
from secateurs.proof.vnnlib import read_vnnlib
from secateurs_lab.zoo.records import rounded
from third_party import instances

OPINION = Path(__file__).parents[1] / "tools" / "second_opinion.py"
FIELDS = ("seed", "network", "answer", "bound", "parts", "bytes", "parts of the certificate")
TIMES = ("certify", "recheck", "write", "second opinion", "said")


class Plain(nn.Module):
    """A network of the competition as layers whose tensors have names of their own."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        held = dict(theirs.named_parameters())
        self.shift = nn.Parameter(-held["w0"].flatten())
        self.layers = nn.ModuleList()
        for k in range(1, len(held), 2):
            weight, bias = held[f"w{k}"].T, held[f"w{k + 1}"]
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.layers.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shift
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        y: Tensor = self.layers[-1](x)
        return y


def spent(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the seconds of processor."""
    begin = time.process_time()
    return call(), time.process_time() - begin


def acasxu(asked: argparse.Namespace) -> None:
    if not asked.out.exists():
        asked.out.write_text(",".join((*FIELDS, *TIMES)) + "\n")
    with asked.out.open() as file:
        done = {int(row["seed"]) for row in csv.DictReader(file)}
    question = read_vnnlib(asked.path / "vnnlib/instance_0.vnnlib")
    box = tuple(torch.tensor([end], dtype=torch.float64) for end in (question.lo, question.hi))
    for seed in range(asked.seeds[0], asked.seeds[1] + 1):
        if seed in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = _one_pair(asked, seed, Path(folder), box)
        with asked.out.open("a") as file:
            csv.writer(file).writerow(row)
        print(*row, sep=" | ", flush=True)


def _one_pair(
    asked: argparse.Namespace, seed: int, folder: Path, box: tuple[Tensor, ...]
) -> list[Any]:
    name, *files = next(instances(seed, asked.path, folder))
    theirs = [read_network(file) for file in files]
    pair = [Plain(network).eval() for network in theirs]
    for one, other in zip(theirs, pair, strict=True):
        x = box[0].float() + (box[1] - box[0]).float() * torch.rand(64, 5)
        assert torch.allclose(one(x[:, None, None]).flatten(1), other(x), rtol=0, atol=1e-4)
    cert, first = spent(
        lambda: sc.certify(*pair, box=box, target=asked.target, seconds=asked.seconds)
    )
    if cert.answer != "proven":
        return [seed, name, cert.answer, f"{cert.bound:.6g}", *[""] * 3, f"{first:.2f}", *[""] * 4]
    told = [each for each in cert.assumptions if each.startswith("split: ")]
    parts = told[0].split("largest of ")[1].split()[0] if told else "1"
    text = cert.to_json()
    again, second = spent(lambda: recheck(text, *pair))
    assert again.holds, again
    proof = folder / "pair.proof.json"
    written, third = spent(lambda: write_proof(cert, *pair, proof))
    for file, model in zip(("first", "second"), pair, strict=True):
        save_file(model.state_dict(), folder / f"{file}.safetensors")
    seconds, said = opinion(proof, folder / "first.safetensors", folder / "second.safetensors")
    found = [seed, name, cert.answer, f"{cert.bound:.6g}", written.parts, written.size, parts]
    return [*found, *(f"{x:.2f}" for x in (first, second, third, seconds)), said]


def zoo(asked: argparse.Namespace) -> None:
    from importlib.resources import files

    networks = Path(str(files("secateurs_lab.zoo"))) / "networks"
    asked.folder.mkdir(exist_ok=True)
    print("network | bound | bytes | recheck s | second opinion s | said")
    for name in lab.zoo.names():
        model, record = lab.zoo.load(name), lab.zoo.record(name)
        dense = rounded(model, copy.deepcopy(model))
        kept = record.certificate
        if kept is None:
            continue
        boxes = boxes_of_record(read_record(json.dumps(kept))[0].boxes, None, None)
        cert = sc.certify(
            dense,
            model,
            around=boxes.center,
            radius=kept["boxes"]["radius"],
            methods=kept["options"]["methods"],
            restarts=1,
        )
        _, again = spent(lambda: recheck(json.dumps(kept), dense, model))  # noqa: B023
        file = networks / record.file
        proof = asked.folder / f"{name.replace('/', '_')}.json"
        written = write_proof(cert, dense, model, proof, rounded=["first"])
        seconds, said = opinion(proof, file, file)
        row = f"{float(written.bound.max()):.6g}", written.size, f"{again:.2f}", f"{seconds:.2f}"
        print(name, *row, said, sep=" | ", flush=True)


def opinion(proof: Path, *weights: Path) -> tuple[float, str]:
    """Seconds of processor of the checker, and its first word."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ran = subprocess.run(
        [sys.executable, "-I", OPINION, proof, *weights], capture_output=True, text=True
    )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
    return seconds, ran.stdout.split(":")[0] or ran.stderr[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    pairs = commands.add_parser("acasxu")
    pairs.add_argument("path", type=Path)
    pairs.add_argument("--seeds", type=int, nargs=2, default=(1, 50))
    pairs.add_argument("--seconds", type=float, default=100)
    pairs.add_argument("--target", type=float, default=0.05)
    pairs.add_argument("--out", type=Path, default=Path("written_proofs.csv"))
    pairs.set_defaults(run=acasxu)
    records = commands.add_parser("zoo")
    records.add_argument("--folder", type=Path, required=True)
    records.set_defaults(run=zoo)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.run(asked)


if __name__ == "__main__":
    main()
