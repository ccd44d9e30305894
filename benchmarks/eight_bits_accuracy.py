"""What eight bits cost a trained network: a small BERT that reads Fashion-MNIST row by row.

    python benchmarks/eight_bits_accuracy.py run rows.csv
    python benchmarks/eight_bits_accuracy.py table rows.csv

Each picture is 28 tokens of 28 pixels; four blocks 64 wide with four heads, feed-forward layers of
256, a linear layer before them and one behind their mean. AdamW with one cycle of its rate,
batches of 64. Then the smallest weights of the linear layers of all blocks go, single ones or 1×4
blocks (each layer the same share), and the network trains half as long again with its zeros held;
the network of blocks is rounded by `accelerate(values="int8")`. Accuracy on the 10,000 pictures of
the test set. Runs that are in the file already are not made again.
"""

import copy
import csv
import sys
import time
from pathlib import Path
from statistics import mean

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc
import secateurs_lab as lab

STEPS, BATCH, RATE = 500, 64, 2e-3
SEEDS, SPARSITIES = (0, 1, 2), (0.8, 0.9)
COLUMNS = ("seed", "zeros", "dense", "scattered", "blocks", "int8", "agree", "layers", "apart",
           "seconds")  # fmt: skip


class Rows(nn.Module):
    """A BERT over the rows of a picture."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        config = hf.BertConfig(
            hidden_size=width, num_hidden_layers=4, num_attention_heads=4, vocab_size=2,
            intermediate_size=4 * width, max_position_embeddings=28,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.into = nn.Linear(28, width)
        self.bert = hf.BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        rows = self.into(pictures.reshape(-1, 28, 28))
        return self.head(self.bert(inputs_embeds=rows).last_hidden_state.mean(1))


def train(
    model: nn.Module, data: lab.data.Dataset, steps: int, seed: int, masks: dict[str, Tensor]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    held = sc.hold(model, masks, optimizer) if masks else None
    model.train()
    for _ in range(steps):
        some = torch.randint(len(data.train_x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data.train_x[some]), data.train_y[some]).backward()
        optimizer.step()
        rate.step()
    if held is not None:
        held.release()
    model.eval()


def answers(model: nn.Module, data: lab.data.Dataset) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(some).argmax(1) for some in data.test_x.split(500)])


def rows_of(seed: int, data: lab.data.Dataset) -> list[dict[str, object]]:
    def right(found: Tensor) -> str:
        return f"{100 * float((found == data.test_y).double().mean()):.2f}"

    start = time.process_time()
    torch.manual_seed(seed)
    dense = Rows()
    train(dense, data, STEPS, seed, {})
    layers = [n for n, p in dense.bert.encoder.named_parameters("bert.encoder") if p.ndim == 2]
    made: list[dict[str, object]] = []
    for sparsity in SPARSITIES:
        row: dict[str, object] = {"seed": seed, "zeros": sparsity}
        row["dense"] = right(answers(dense, data))
        for name, pattern in (("scattered", "unstructured"), ("blocks", "1x4")):
            model = copy.deepcopy(dense)
            pruned = sc.prune_(
                model, "magnitude", sparsity=sparsity, pattern=pattern, scope="uniform",
                where=layers,
            )  # fmt: skip
            train(model, data, STEPS // 2, seed + 100, dict(pruned.masks))
            float_answers = answers(model, data)
            row[name] = right(float_answers)
        example = data.test_x[:1]
        fast = sc.accelerate(model, example, values="int8", keep="always", tune="guess")
        rounded = answers(fast, data)
        row |= {
            "int8": right(rounded),
            "agree": f"{100 * float((rounded == float_answers).double().mean()):.2f}",
            "layers": sum("eight bits" in layer.ways[0] for layer in fast.report.layers),
        }
        with torch.inference_mode():
            wanted, found = (m(data.test_x[:500]) for m in (model, fast))
        row["apart"] = f"{float((wanted - found).abs().max() / wanted.abs().max()):.4f}"
        row["seconds"] = round(time.process_time() - start)
        made.append(row)
    return made


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "table":
        found = read(path)
        print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|")
        for row in found:
            print("|", " | ".join(row.values()), "|")
        for sparsity in SPARSITIES:
            some = [row for row in found if float(row["zeros"]) == sparsity]
            means = {name: mean(float(row[name]) for row in some) for name in COLUMNS[2:7]}
            print(sparsity, ", ".join(f"{name} {value:.2f}" for name, value in means.items()))
        return
    torch.set_num_threads(1)
    data = lab.data.load("fashion-mnist")
    done = {int(row["seed"]) for row in read(path)}
    for seed in SEEDS:
        if seed in done:
            continue
        made = rows_of(seed, data)
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not file.tell():
                writer.writeheader()
            writer.writerows(made)


if __name__ == "__main__":
    main()
