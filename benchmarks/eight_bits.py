"""Linear layers of 1×4 blocks in eight bits against float with as many scattered zeros, torch, and
onnxruntime in eight bits (dense: it skips no zeros). Called in turns, processor time.

    python benchmarks/eight_bits.py          the four of them
    python benchmarks/eight_bits.py parts    what a call in eight bits is made of, 128 rows
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import secateurs as sc
from secateurs.ship.fast.eight_bits import EightBits, eight_bit_kernel

ROUNDS = 60


def in_ort(weight: np.ndarray) -> Callable[[torch.Tensor], Any]:
    """Rows rounded as they come (one scale for all), weights by one scale for each output."""
    scale = np.abs(weight).max(axis=1) / 127
    whole = np.rint(weight / scale[:, None]).astype(np.int8).T.copy()
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["m"]),
        helper.make_node("Mul", ["f", "m"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(whole, "w"),
        numpy_helper.from_array(scale.astype(np.float32), "ws"),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", size])
        for n, size in (("x", whole.shape[0]), ("y", whole.shape[1]))
    ]
    graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    onnx.checker.check_model(made)
    return lambda x: session.run(None, {"x": x.numpy()})


def medians(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    spent: dict[str, list[float]] = {name: [] for name in calls}
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start = time.process_time()
                call()
                spent[name].append(1e6 * (time.process_time() - start))
    return {name: statistics.median(times) for name, times in spent.items()}


def row(what: str, forms: dict[str, Callable[[torch.Tensor], Any]], x: torch.Tensor) -> None:
    took = medians({name: partial(form, x) for name, form in forms.items()})
    with torch.inference_mode():
        wanted = forms["torch"](x)
        apart = float((forms["int8"](x) - wanted).abs().max() / wanted.abs().max())
    figures = " | ".join(f"{t:.0f}" for t in took.values())
    gain = took["float"] / took["int8"]
    print(f"| {what} | {figures} | **{gain:.2f}** | {apart:.3f} |", flush=True)


def layers() -> Iterator[tuple[str, nn.Linear, nn.Linear]]:
    """BERT's shapes at both amounts, with scattered zeros and with blocks."""
    for inputs, outputs in ((384, 384), (384, 1536), (1536, 384)):
        for sparsity in (0.8, 0.9):
            torch.manual_seed(0)
            scattered, blocks = (nn.Linear(inputs, outputs, bias=False).eval() for _ in range(2))
            sc.prune_(scattered, "magnitude", sparsity=sparsity)
            sc.prune_(blocks, "magnitude", sparsity=sparsity, pattern="1x4")
            yield f"{inputs} → {outputs}, {sparsity:.0%}", scattered, blocks


def parts(run: Callable[..., int]) -> None:
    """A call, the kernel into memory that is kept (and warm), and the same without a product."""
    print("| layer, zeros | ours float | ours int8 | kernel | no products | fresh zeros |")
    print("| --- | --- | --- | --- | --- | --- |")
    for what, scattered, blocks in layers():
        outputs, inputs = blocks.weight.shape
        ours = EightBits(run, blocks.weight.detach().double().numpy(), np.zeros(outputs))
        empty = EightBits(run, np.zeros((outputs, inputs)), np.zeros(outputs))
        fast = sc.accelerate(scattered, torch.zeros(1, inputs), keep="always")
        x, kept = torch.randn(128, inputs), torch.empty(128, outputs)

        def kernel(layer: EightBits, x: torch.Tensor = x, kept: torch.Tensor = kept) -> None:
            run(byref(layer._layer), x.data_ptr(), kept.data_ptr(), 128, 1)

        took = medians(
            {
                "torch": partial(blocks, x),  # between the others, as in the first table
                "float": partial(fast, x),
                "int8": partial(ours, x),
                "kernel": partial(kernel, ours),
                "no products": partial(kernel, empty),
                "fresh": lambda n=outputs: torch.empty(128, n).zero_(),
            }
        )
        print("|", what, "|", " | ".join(f"{t:.0f}" for t in list(took.values())[1:]), "|")


def main() -> None:
    torch.set_num_threads(1)
    run = eight_bit_kernel()
    if run is None:
        raise SystemExit("no C++ compiler")
    print(f"load {os.getloadavg()[0]:.1f}; µs\n")
    if sys.argv[1:] == ["parts"]:
        parts(run)
        return
    print(
        "| layer, zeros, rows | torch | ours float | ORT int8 | ours int8 | float / int8 | apart |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for what, scattered, blocks in layers():
        outputs, inputs = blocks.weight.shape
        weight = blocks.weight.detach().double().numpy()
        ours, ort = EightBits(run, weight, np.zeros(outputs)), in_ort(weight)
        fast = sc.accelerate(scattered, torch.zeros(1, inputs), keep="always")
        forms = {"torch": blocks, "float": fast, "ort": ort, "int8": ours}
        for rows in (128, 1):
            row(f"{what}, {rows}", forms, torch.randn(rows, inputs))


if __name__ == "__main__":
    main()
