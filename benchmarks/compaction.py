"""What compaction brings: ResNet-18 with 70 % of its channels gone, and how long a ResNet-50 takes.

    python benchmarks/compaction.py [--threads N] [--json FILE]

Latencies are medians of interleaved runs in one process. onnxruntime is measured where it is installed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import secateurs as sc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def whole_channels_gone(model: nn.Module, share: float) -> nn.Module:
    """Zero a share of the channels everywhere, with everything that belongs to them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = sc.ship.channel_groups(model, torch.zeros(1, 3, 32, 32))
        for group in found.groups:
            gone = torch.rand(len(group.labels), generator=generator) < share
            found.clear_(model, group.labels[gone])
    return model.eval()


def interleaved(runs: dict, times: int) -> dict[str, float]:
    """Median seconds of each function, called in turn."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(times):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seen[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seen.items()}
