"""What a user waits for: the first minutes with the package, each beside its floor.

    python benchmarks/waiting.py                                   every row
    python benchmarks/waiting.py --only compact:mobilenet onnx     rows whose name begins so
    python benchmarks/waiting.py --repeats 5

A row is a command in a process of its own, as a user starts it; its floor (the import of torch
alone, `torch.export` alone, `torch.onnx.export` alone) is another. Both take turns, so that what
else runs on the machine slows both down; medians of seconds on the clock, or of processor time
(--processor), imports of torch and the building of the network not counted. Rows that trace have a
twin, "warm", where the process has traced another network before: torch's tracer imports a thousand
modules at its first call. "second" rows begin where the first has filled the cache folder.
The networks are written here from their published descriptions, with random weights.
"""

import argparse
import compileall
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


# The networks.


def networks() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """By name: what makes a network and an example."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    def conv(
        inp: int, out: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = nn.SiLU
    ) -> nn.Sequential:
        layers = [
            nn.Conv2d(inp, out, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(out),
        ]
        return nn.Sequential(*layers, *([act()] if act else []))

    class Squeeze(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            inner = max(8, (width // 4 + 4) // 8 * 8)
            self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            small = functional.adaptive_avg_pool2d(x, 1)
            return x * functional.hardsigmoid(self.up(functional.relu(self.down(small))))

    class Inverted(nn.Module):
        """Of MobileNetV3 (Howard et al. 2019)."""

        def __init__(self, inp: int, row: tuple[int, int, int, bool, bool, int]) -> None:
            super().__init__()
            kernel, wide, out, squeezed, hard, stride = row
            act = nn.Hardswish if hard else nn.ReLU
            self.skip = stride == 1 and inp == out
            self.body = nn.Sequential(
                *([conv(inp, wide, 1, act=act)] if wide != inp else []),
                conv(wide, wide, kernel, stride, wide, act),
                *([Squeeze(wide)] if squeezed else []),
                conv(wide, out, 1, act=None),
            )

        def forward(self, x: Tensor) -> Tensor:
            return x + self.body(x) if self.skip else self.body(x)

    def mobilenet() -> tuple[nn.Module, Tensor]:
        rows = [
            (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2),
            (3, 72, 24, False, False, 1), (5, 72, 40, True, False, 2),
            (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
            (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1),
            (3, 184, 80, False, True, 1), (3, 184, 80, False, True, 1),
            (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
            (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1),
            (5, 960, 160, True, True, 1),
        ]  # fmt: skip
        layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
        width = 16
        for row in rows:
            layers.append(Inverted(width, row))
            width = row[2]
        layers += [conv(width, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        layers += [nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(), nn.Linear(1280, 1000)]
        return nn.Sequential(*layers), torch.randn(1, 3, 224, 224)

    class ChannelNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class ConvNeXtBlock(nn.Module):
        """Of ConvNeXt (Liu et al. 2022)."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm, self.gamma = nn.LayerNorm(width), nn.Parameter(torch.full((width,), 0.1))
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            y = self.gamma * self.narrow(functional.gelu(self.wide(y)))
            return x + y.permute(0, 3, 1, 2)

    def convnext() -> tuple[nn.Module, Tensor]:
        widths, depths = (40, 80, 160, 320), (2, 2, 6, 2)
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if stage:
                before = widths[stage - 1]
                layers += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2)]
            layers += [ConvNeXtBlock(width) for _ in range(depth)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(320), nn.Linear(320, 1000)]
        return nn.Sequential(*layers), torch.randn(1, 3, 224, 224)

    class UNet(nn.Module):
        """Ronneberger et al. 2015, with padding and batch norm, four levels."""

        def __init__(self, width: int = 32) -> None:
            super().__init__()
            widths = [width * 2**i for i in range(5)]
            pairs = list(itertools.pairwise(widths))
            self.first = self.twice(3, width)
            self.down = nn.ModuleList([self.twice(a, b) for a, b in pairs])
            self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs])
            self.join = nn.ModuleList([self.twice(b, a) for a, b in pairs])
            self.head = nn.Conv2d(width, 2, 1)

        def twice(self, inp: int, out: int) -> nn.Module:
            return nn.Sequential(conv(inp, out, 3, act=nn.ReLU), conv(out, out, 3, act=nn.ReLU))

        def forward(self, x: Tensor) -> Tensor:
            kept = [self.first(x)]
            for down in self.down:
                kept.append(down(functional.max_pool2d(kept[-1], 2)))
            x = kept.pop()
            for level in range(3, -1, -1):
                x = self.join[level](torch.cat([kept.pop(), self.up[level](x)], 1))
            return self.head(x)

    class C2f(nn.Module):
        """Of YOLOv8."""

        def __init__(self, inp: int, out: int, depth: int, skip: bool) -> None:
            super().__init__()
            self.half, self.skip = out // 2, skip
            self.begin, self.end = conv(inp, out, 1), conv((2 + depth) * self.half, out, 1)
            self.inner = nn.ModuleList(
                nn.Sequential(conv(self.half, self.half, 3), conv(self.half, self.half, 3))
                for _ in range(depth)
            )

        def forward(self, x: Tensor) -> Tensor:
            parts = list(self.begin(x).chunk(2, 1))
            for inner in self.inner:
                parts.append(inner(parts[-1]) + (parts[-1] if self.skip else 0))
            return self.end(torch.cat(parts, 1))

    class Yolo(nn.Module):
        """YOLOv8n, with its raw predictions at three scales."""

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), C2f(32, 32, 1, True))
            self.b = nn.Sequential(self.a, conv(32, 64, 3, 2), C2f(64, 64, 2, True))
            self.c = nn.Sequential(conv(64, 128, 3, 2), C2f(128, 128, 2, True))
            self.d = nn.Sequential(conv(128, 256, 3, 2), C2f(256, 256, 1, True))
            self.pool1, self.pool2 = conv(256, 128, 1), conv(512, 256, 1)
            self.up1, self.up2 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
            self.down1, self.mix1 = conv(64, 64, 3, 2), C2f(192, 128, 1, False)
            self.down2, self.mix2 = conv(128, 128, 3, 2), C2f(384, 256, 1, False)
            self.boxes = nn.ModuleList(self.head(w, 64, 64) for w in (64, 128, 256))
            self.classes = nn.ModuleList(self.head(w, 80, 80) for w in (64, 128, 256))

        def head(self, inp: int, width: int, out: int) -> nn.Module:
            return nn.Sequential(
                conv(inp, width, 3), conv(width, width, 3), nn.Conv2d(width, out, 1)
            )

        def forward(self, x: Tensor) -> list[Tensor]:
            b = self.b(x)
            c = self.c(b)
            pooled = [self.pool1(self.d(c))]
            for _ in range(3):
                pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
            d = self.pool2(torch.cat(pooled, 1))
            c = self.up1(torch.cat([functional.interpolate(d, scale_factor=2.0), c], 1))
            b = self.up2(torch.cat([functional.interpolate(c, scale_factor=2.0), b], 1))
            c = self.mix1(torch.cat([self.down1(b), c], 1))
            d = self.mix2(torch.cat([self.down2(c), d], 1))
            heads = zip((b, c, d), self.boxes, self.classes, strict=True)
            return [torch.cat([boxes(y), classes(y)], 1) for y, boxes, classes in heads]

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {"vocab_size": 100, "intermediate_size": 128}

    def bert() -> tuple[nn.Module, Any]:
        from transformers import BertConfig, BertForSequenceClassification

        model = BertForSequenceClassification(BertConfig(**sizes, **words))
        return model, {"input_ids": torch.randint(100, (1, 16))}

    def llama() -> tuple[nn.Module, Any]:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**sizes, **words, num_key_value_heads=2, use_cache=False)
        return LlamaForCausalLM(config), {"input_ids": torch.randint(100, (1, 16))}

    return {
        "mobilenet-v3": mobilenet,
        "convnext-atto": convnext,
        "unet": lambda: (UNet(), torch.randn(1, 3, 128, 128)),
        "yolov8n": lambda: (Yolo(), torch.randn(1, 3, 256, 256)),
        "bert": bert,
        "llama": llama,
    }


# What a process does; each gives the seconds that count.


def made(name: str) -> tuple[Any, Any]:
    """A network in evaluation mode and an example, the same in every process."""
    import torch

    if name.startswith("warm:"):
        small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        torch.export.export(small.eval(), (torch.zeros(1, 3, 8, 8),), strict=False)
    torch.manual_seed(0)
    model, example = networks()[name.removeprefix("warm:")]()
    return model.eval(), example


def call_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments."""
    return ((), dict(example)) if isinstance(example, dict) else ((example,), {})


PROCESSOR = "WAITING_PROCESSOR"


def clock() -> float:
    """Seconds on the clock, or of this process and those it waited for."""
    if os.environ.get(PROCESSOR) != "1":
        return time.perf_counter()
    return sum(os.times()[:4])


@contextlib.contextmanager
def seconds(parts: dict[str, float], name: str) -> Any:
    """The time of a block under a name."""
    start = clock()
    yield
    parts[name] = clock() - start


def importing(name: str) -> dict[str, float]:
    """A public name, torch being imported; `nothing` is torch itself."""
    parts: dict[str, float] = {}
    with seconds(parts, "torch"):
        import torch  # noqa: F401
    if name == "nothing":
        return parts
    with seconds(parts, f"sc.{name}"):
        import secateurs

        getattr(secateurs, name)
    return {f"sc.{name}": parts[f"sc.{name}"]}


def tracing(name: str) -> dict[str, float]:
    """`torch.export` alone, which both captures of `compact` and every program begin with."""
    import torch

    model, example = made(name)
    args, kwargs = call_of(example)
    parts: dict[str, float] = {}
    with seconds(parts, "torch.export"), torch.no_grad():
        torch.export.export(model, args, kwargs, strict=False)
    return parts


def compacting(name: str) -> dict[str, float]:
    """A third of the channels goes, then is cut out."""
    model, example = made(name)
    import secateurs as sc

    sc.prune_channels_, sc.compact  # noqa: B018
    parts: dict[str, float] = {}
    with seconds(parts, "prune_channels_"):
        sc.prune_channels_(model, example, "magnitude", channels=0.67)
    with seconds(parts, "compact"):
        sc.compact(model, example)
    return parts


def accelerating(name: str) -> dict[str, float]:
    """A program for a network with 90 % zeros."""
    model, example = made(name)
    import secateurs as sc

    sc.prune_(model, "magnitude", sparsity=0.9)
    sc.accelerate  # noqa: B018
    parts: dict[str, float] = {}
    with seconds(parts, "accelerate"):
        sc.accelerate(model, example, tune="guess")
    return parts


def tuning(name: str) -> dict[str, float]:
    """The same with timed layers."""
    model, example = made(name)
    import secateurs as sc

    sc.prune_(model, "magnitude", sparsity=0.9)
    sc.accelerate  # noqa: B018
    parts: dict[str, float] = {}
    with seconds(parts, "accelerate"):
        sc.accelerate(model, example)
    return parts


def exporting(name: str) -> dict[str, float]:
    """An ONNX file, run and compared."""
    model, example = made(name)
    import secateurs as sc

    parts: dict[str, float] = {}
    with seconds(parts, "export"), tempfile.TemporaryDirectory() as folder:
        sc.export(model, f"{folder}/m.onnx", example)
    return parts


def exporting_bare(name: str) -> dict[str, float]:
    """`torch.onnx.export` alone, batch and the length of token sequences free as in ours, and the
    first call of its session."""
    import torch

    model, example = made(name)
    args, kwargs = call_of(example)
    length = {1: torch.export.Dim.DYNAMIC} if kwargs else {}
    free = {0: torch.export.Dim("batch", min=1), **length}
    shapes = dict.fromkeys(kwargs, free) if kwargs else tuple(free for _ in args)
    parts: dict[str, float] = {}
    with seconds(parts, "torch.onnx"), tempfile.TemporaryDirectory() as folder, torch.no_grad():
        doubled = [torch.cat([t, t]) for t in (*args, *kwargs.values())]
        args, kwargs = tuple(doubled[: len(args)]), dict(zip(kwargs, doubled, strict=False))
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        written = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
        written.save(f"{folder}/m.onnx")
        import onnxruntime

        onnxruntime.InferenceSession(f"{folder}/m.onnx", providers=["CPUExecutionProvider"])
    return parts


def readme() -> dict[str, float]:
    """The example at the top of README.md, torch's import included, as a user meets it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    parts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "example.py"
        file.write_text(code, encoding="utf-8")
        with seconds(parts, "example"):
            subprocess.run(
                [sys.executable, str(file)], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
    return parts


def commanding(*words: str) -> dict[str, float]:
    """A command of the command line, in a process of its own."""
    parts: dict[str, float] = {}
    with seconds(parts, " ".join(words)):
        subprocess.run(
            [sys.executable, "-m", "secateurs", *words], check=True, stdout=subprocess.DEVNULL
        )
    return parts


def bare_process() -> dict[str, float]:
    """A process that imports torch."""
    parts: dict[str, float] = {}
    with seconds(parts, "import torch"):
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return parts


DOES: dict[str, Callable[..., dict[str, float]]] = {
    "importing": importing,
    "tracing": tracing,
    "compacting": compacting,
    "accelerating": accelerating,
    "tuning": tuning,
    "exporting": exporting,
    "exporting_bare": exporting_bare,
    "readme": readme,
    "commanding": commanding,
    "bare_process": bare_process,
}


# The table.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is measured, and what it is compared with.

    asked: seconds, or a multiple of the floor where it ends with ×, or floor + seconds.
    cold: the cache folder is empty before every run.
    """

    name: str
    does: tuple[str, ...]
    floor: tuple[str, ...] | None
    asked: str
    cold: bool = False


def rows() -> list[Row]:
    """Every row of the table."""
    found = [
        Row(name="import:hold", does=("importing", "hold"), floor=("importing", "nothing"),
            asked="0.3"),
        Row(name="import:prune_", does=("importing", "prune_"), floor=("importing", "nothing"),
            asked="0.3"),
        Row(name="command:models", does=("commanding", "models"), floor=("bare_process",),
            asked="floor + 0.5"),
        Row(name="command:scores", does=("commanding", "scores"), floor=("bare_process",),
            asked="floor + 0.5"),
        Row(name="readme:first", does=("readme",), floor=("bare_process",), asked="10", cold=True),
        Row(name="readme:second", does=("readme",), floor=("bare_process",), asked="5"),
    ]  # fmt: skip
    for name in ("mobilenet-v3", "convnext-atto", "unet", "bert", "llama"):
        asked = "1.5" if name in ("bert", "llama") else "2"
        for form in (name, f"warm:{name}"):
            found.append(Row(name=f"compact:{form}", does=("compacting", form),
                             floor=("tracing", form), asked=asked))  # fmt: skip
    for name in ("mobilenet-v3", "convnext-atto", "unet", "yolov8n"):
        found += [
            Row(name=f"guess-first:{name}", does=("accelerating", name), floor=("tracing", name),
                asked="5", cold=True),
            Row(name=f"guess-second:{name}", does=("accelerating", name), floor=("tracing", name),
                asked="2"),
            Row(name=f"guess-second:warm:{name}", does=("accelerating", f"warm:{name}"),
                floor=("tracing", f"warm:{name}"), asked="2"),
            Row(name=f"tuned-first:{name}", does=("tuning", name), floor=("tracing", name),
                asked="-", cold=True),
            Row(name=f"tuned-second:warm:{name}", does=("tuning", f"warm:{name}"),
                floor=("tracing", f"warm:{name}"), asked="2"),
        ]  # fmt: skip
    for name in ("bert", "llama"):
        found.append(Row(name=f"onnx:{name}", does=("exporting", name),
                         floor=("exporting_bare", name), asked="1.2×"))  # fmt: skip
    return found


def child(words: tuple[str, ...], cache: Path) -> dict[str, float]:
    """What another process measures."""
    # Warm unless the row asks otherwise: kernels are compiled once on a machine.
    setting = {**os.environ, "SECATEURS_CACHE": str(cache), "PYTHONWARNINGS": "ignore"}
    setting.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    done = subprocess.run(
        [sys.executable, __file__, "--child", *words],
        env=setting, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")
    parts: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return parts


def without_kernels(cache: Path) -> Path:
    """An empty cache, but for the compiled kernels: compiling them is the first row of README."""
    fresh = Path(tempfile.mkdtemp(prefix="waiting-"))
    for file in cache.glob("*.so*"):
        (fresh / file.name).write_bytes(file.read_bytes())
        (fresh / file.name).chmod(0o700)
    return fresh


def measure(row: Row, repeats: int, cache: Path) -> None:
    """Print one line of the table."""
    import shutil

    taken: list[dict[str, float]] = []
    floors: list[float] = []
    if "second" in row.name:
        child(row.does, cache)  # fills the cache
    for _ in range(repeats):
        if row.floor:
            floors.append(sum(child(row.floor, cache).values()))
        if not row.cold:
            taken.append(child(row.does, cache))
            continue
        empty = row.name.startswith("readme")
        fresh = Path(tempfile.mkdtemp(prefix="waiting-")) if empty else without_kernels(cache)
        taken.append(child(row.does, fresh))
        shutil.rmtree(fresh)
    parts = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
    whole = statistics.median(sum(one.values()) for one in taken)
    floor = statistics.median(floors) if floors else 0.0
    detail = " + ".join(f"{s:.2f}" for s in parts.values()) if len(parts) > 1 else ""
    share = f"{whole / floor:.2f}" if floor else "-"
    print(
        f"| {row.name} | {whole:.2f} | {detail} | {floor:.2f} | {share} | {row.asked} |", flush=True
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name begins so")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processor", action="store_true", help="processor time")
    parser.add_argument("--cache", type=Path, help="a cache folder that is kept")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(DOES[given.child[0]](*given.child[1:])))
        return
    if given.processor:
        os.environ[PROCESSOR] = "1"
    compileall.compile_dir(ROOT / "src", quiet=1)
    cache = given.cache or Path(tempfile.mkdtemp(prefix="waiting-"))
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    threads = os.environ.get("OMP_NUM_THREADS", "torch's own number of")
    what = "seconds of processor time" if given.processor else "seconds on the clock"
    print(f"{what}, {given.repeats} pairs, {threads} thread(s), load {os.getloadavg()[0]:.1f}\n")
    print("| row | s | parts | floor s | over floor | asked s |")
    print("|---|---|---|---|---|---|")
    for row in rows():
        if any(row.name.startswith(begin) for begin in given.only):
            measure(row, given.repeats, cache)


if __name__ == "__main__":
    main()
