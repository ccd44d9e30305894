"""Networks of others, from their weights to a file: what is right, and what is refused in words.

    python benchmarks/third_party_networks.py [NAME …] [--seconds 120] [--out FILE]

Each network is small, freshly drawn, and runs in a process of its own with a limit to its
processor's time: half of the weights pruned by magnitude, held for two steps of training, half of
the channels cut (exactly, and with exact=False), compacted, accelerated (keep="always"), saved and
loaded. Every answer is compared with torch's (`tests/strange/lifetime.py` says how). Packages that
are not installed are named; the networks of transformers and of plain torch are those of
`tests/strange/foreign.py`.
"""

import argparse
import csv
import json
import logging
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from strange import foreign
from strange.foreign import images, tokens
from strange.lifetime import STAGES, live

Built = tuple[nn.Module, Any]


def timm(name: str, size: int = 64, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        from timm import create_model

        return create_model(name, pretrained=False, num_classes=10, **options), images(size)

    return build


def mambapy() -> Built:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=32, n_layers=2)), torch.randn(2, 16, 32)


def diffusers_unet() -> Built:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, (images(16), torch.tensor([3, 3]))


def diffusers_vae() -> Built:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        layers_per_block=1,
    )
    return model, images(32)


def pyg(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        import torch_geometric.nn

        model = getattr(torch_geometric.nn, name)(16, 32, 2, 7, **options)
        return model, (torch.randn(20, 16), tokens(2, 60, among=20))

    return build


def smp(name: str, encoder: str) -> Callable[[], Built]:
    def build() -> Built:
        import segmentation_models_pytorch

        make = getattr(segmentation_models_pytorch, name)
        return make(encoder, encoder_weights=None, classes=4), images()

    return build


def yolo() -> Built:
    from ultralytics import YOLO

    return YOLO("yolo11n.yaml", verbose=False).model, images()


SWIN = {
    "img_size": 64,
    "window_size": 4,
    "embed_dim": 32,
    "depths": (1, 1, 2, 1),
    "num_heads": (2, 4, 8, 16),
}
PLAIN = ("lstm_tagger", "gru_ctc", "encoder_decoder")
NETWORKS: dict[str, Callable[[], Built]] = {
    "timm_convnextv2_atto": timm("convnextv2_atto"),
    "timm_efficientnetv2_b0": timm("tf_efficientnetv2_b0"),
    "timm_repvgg_a0": timm("repvgg_a0"),
    "timm_swin": timm("swin_tiny_patch4_window7_224", **SWIN),
    "timm_maxvit_pico": timm("maxvit_rmlp_pico_rw_256", img_size=64),
    "timm_mobilevitv2": timm("mobilevitv2_050"),
    "timm_fastvit_t8": timm("fastvit_t8"),
    "timm_ghostnetv2": timm("ghostnetv2_100"),
    "timm_mixer_s32": timm("mixer_s32_224", img_size=64),
    "timm_davit_tiny": timm("davit_tiny"),
    "timm_edgenext": timm("edgenext_xx_small"),
    "mambapy": mambapy,
    "diffusers_unet": diffusers_unet,
    "diffusers_vae": diffusers_vae,
    "pyg_gcn": pyg("GCN"),
    "pyg_gat": pyg("GAT", heads=4),
    "smp_deeplab": smp("DeepLabV3Plus", "efficientnet-b0"),
    "smp_fpn": smp("FPN", "efficientnet-b0"),
    "yolo11n": yolo,
    **{
        name: build
        for name, build in foreign.NETWORKS.items()
        if name in PLAIN or name.startswith("hf_")
    },
}


def run(name: str, seconds: int) -> None:
    """One network: a line of JSON for each stage as it ends, or one that says what is missing."""
    # Of the processor's time: on a shared machine a clock would measure the others' work.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        model, example = NETWORKS[name]()
    except ImportError as error:
        print(json.dumps({"missing": error.name or str(error)}), flush=True)
        return
    for stage in live(model, example):
        row = {
            "stage": stage.name,
            "verdict": stage.verdict,
            "said": stage.said,
            "seconds": stage.seconds,
        }
        print(json.dumps(row), flush=True)


def ask(name: str, seconds: int) -> list[dict[str, Any]]:
    """What a process of its own says about a network until it is done or its time is over."""
    # Files here have the names of packages (kernels), which -P keeps out of sight.
    command = [sys.executable, "-P", __file__, name, "--inside", "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Packages print what they like; ours are the lines of JSON.
    lines = done.stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith(('{"stage"', '{"missing"'))]
    if not any("missing" in row for row in rows) and len(rows) < len(STAGES):
        over = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        said = f"not done after {seconds} s" if over else f"ended: {done.stderr[-200:]}"
        spent = seconds - sum(row["seconds"] for row in rows) if over else 0
        left = list(STAGES)[len(rows)]
        rows.append({"stage": left, "verdict": "unfinished", "said": said, "seconds": spent})
    return rows


def write(found: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """A row for each network: "right", or the verdict with its words, stage by stage."""
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("network", *STAGES, "seconds"))
        for name, rows in found.items():
            missing = next((row["missing"] for row in rows if "missing" in row), None)
            if missing is not None:
                table.writerow((name, f"needs {missing}"))
                continue
            cells = dict.fromkeys(STAGES, "–")
            for row in rows:
                said = "" if row["verdict"] == "right" else f": {' '.join(row['said'].split())}"
                cells[row["stage"]] = row["verdict"] + said
            table.writerow((name, *cells.values(), f"{sum(row['seconds'] for row in rows):.0f}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = {*args.names} - {*NETWORKS}
    if unknown:
        parser.error(f"no network is named {', '.join(sorted(unknown))}")
    if args.inside:
        run(args.names[0], args.seconds)
        return
    found = {}
    for name in args.names or NETWORKS:
        found[name] = ask(name, args.seconds)
        verdicts = [row.get("missing") or row["verdict"] for row in found[name]]
        print(name, *verdicts, flush=True)
        if args.out:
            write(found, args.out)


if __name__ == "__main__":
    main()
