"""A small GPT, trained here on the prose of a Debian package, and its perplexity when pruned.

    apt-get download perl-doc && dpkg -x perl-doc_*.deb perl-doc
    python benchmarks/small_gpt.py train perl-doc small-gpt [MINUTES]
    python benchmarks/small_gpt.py prune small-gpt rows.csv
    python benchmarks/small_gpt.py table rows.csv

Text: the paragraphs of Perl's manual (`*.pod`) that are prose, without code, tables and the table
of contents. Every twentieth piece of 32 kB is set aside for the test. Tokens: 2,048 byte pairs,
learnt from the training text. Network: a Llama of six blocks of 256 features, 5.3 million
parameters, windows of 128 tokens. AdamW with a rate that rises for 2 % of the time given, stays and
falls to zero over the last half; matrix products in bfloat16, weights in float32, one thread.

Written to small-gpt/: tokenizer.json, train.pt and test.pt (tokens), the model as transformers
keeps it, every few minutes, and log.csv (minutes, steps, loss of training, loss on the test).

Pruned on 64 windows of the training text, drawn with three seeds, and measured on the first 96
windows of the test. A row that is in the file already is not measured again.
"""

import copy
import csv
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import secateurs as sc

CONTEXT, WORDS, SEQUENCES = 128, 2048, 16
TABLES = ("perltoc.pod", "perluniprops.pod")


def read_prose(folder: Path) -> tuple[str, str]:
    """The text to train on and the text to test on."""
    files = sorted(f for f in folder.rglob("*.pod") if f.name not in TABLES)
    paragraphs = [
        plain(paragraph)
        for file in files
        for paragraph in file.read_text("utf-8", "replace").split("\n\n")
        # Code is indented, and commands of the format begin with "=".
        if paragraph.strip() and paragraph[0] not in " \t=\n"
    ]
    text = "\n\n".join(paragraphs)
    pieces = [text[start : start + 32768] for start in range(0, len(text), 32768)]
    return (
        "".join(piece for number, piece in enumerate(pieces) if number % 20 != 10),
        "".join(piece for number, piece in enumerate(pieces) if number % 20 == 10),
    )


def plain(paragraph: str) -> str:
    """A paragraph on one line, without the marks of the format: C<x> and L<x|page> become x."""
    text = " ".join(paragraph.split())
    for _ in range(3):  # marks inside marks
        text = re.sub(r"[A-Z]<(?:[^<>|]*\|)?([^<>]*)>", r"\1", text)
        text = re.sub(r"[A-Z]<<+ (.*?) >>+", r"\1", text)
    return text


def make_tokens(folder: Path, out: Path) -> tuple[Tensor, Tensor]:
    """The tokens of both texts; the tokenizer is kept beside them."""
    texts = read_prose(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([texts[0]], trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    tokens = [torch.tensor(tokenizer.encode(text).ids) for text in texts]
    for name, text, each in zip(("train", "test"), texts, tokens, strict=True):
        torch.save(each, out / f"{name}.pt")
        print(f"{name}: {len(text):,} characters, {len(each):,} tokens", flush=True)
    return tokens[0], tokens[1]


def build() -> LlamaForCausalLM:
    """The network, always the same."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6}
    config = LlamaConfig(
        **sizes,
        num_attention_heads=4,
        vocab_size=WORDS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, tokens: Tensor, test: Tensor, out: Path, minutes: float) -> None:
    """Train for so long; the model is written every few minutes."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=2e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    log = out / "log.csv"
    log.write_text("minutes,steps,train,test\n")
    generator = torch.Generator().manual_seed(0)
    begun, saved, steps, recent = time.monotonic(), 0.0, 0, 0.0
    while (gone := (time.monotonic() - begun) / 60) < minutes:
        share = gone / minutes
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (share + 1e-4) / 0.02, 2 * (1 - share))
        starts = torch.randint(len(tokens) - CONTEXT, (SEQUENCES,), generator=generator)
        batch = torch.stack([tokens[start : start + CONTEXT] for start in starts.tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps, recent = steps + 1, 0.98 * recent + 0.02 * float(loss)
        if gone - saved > 4 or steps == 50:
            saved = gone
            write(model, out, f"{gone:.1f},{steps},{recent / (1 - 0.98**steps):.4f}", test)
    write(model, out, f"{minutes:.1f},{steps},{recent / (1 - 0.98**steps):.4f}", test)


@torch.no_grad()
def write(model: LlamaForCausalLM, out: Path, so_far: str, test: Tensor) -> None:
    """The model as it is, and a line of the log."""
    windows = test[: 64 * CONTEXT].view(64, CONTEXT)
    with torch.autocast("cpu", torch.bfloat16):
        loss = float(model(input_ids=windows, labels=windows).loss)
    model.save_pretrained(out)
    with (out / "log.csv").open("a") as log:
        log.write(f"{so_far},{loss:.4f}\n")
    print(so_far, f"{loss:.4f}", flush=True)


METHODS = {
    "magnitude": ("magnitude", "layer", False),
    "Wanda": ("wanda", "row", False),
    "SparseGPT": ("sparsegpt", "layer", False),
    "Wanda + reconstruction": ("wanda", "row", True),
    "SparseGPT + reconstruction": ("sparsegpt", "layer", True),
}
AMOUNTS = ("50 %", "60 %", "70 %", "2:4")
FIELDS = ("amount", "owl", "method", "seed", "perplexity", "seconds")


def measure(folder: Path, rows: Path) -> None:
    """Prune the model in every way, and write a row for each."""
    whole = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    train, test = (torch.load(folder / f"{name}.pt") for name in ("train", "test"))
    text = test[: 96 * CONTEXT]
    done = set()
    if rows.exists():
        done = {tuple(row.split(",")[:4]) for row in rows.read_text().splitlines()}
    else:
        rows.write_text(",".join(FIELDS) + "\n")
        dense = float(sc.perplexity(whole, text, context=CONTEXT))
        append(rows, ("0 %", "no", "whole", "0", f"{dense:.3f}", "0"))
    for seed, owl, amount, method in jobs():
        key = (amount, owl, method, str(seed))
        if key in done:
            continue
        draw = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(train) - CONTEXT, (64,), generator=draw).tolist()
        windows = torch.stack([train[start : start + CONTEXT] for start in starts])
        batch = [{"input_ids": part} for part in windows.split(16)]
        score, scope, reconstruct = METHODS[method]
        fields = {"pattern": amount} if amount == "2:4" else {"scope": scope}
        if amount != "2:4":
            fields["sparsity"] = int(amount[:2]) / 100
        amounts = "owl" if owl == "yes" else None
        model, begun = copy.deepcopy(whole), time.process_time()
        sc.prune_blocks_(
            model,
            score,
            batch=batch,
            reconstruct=reconstruct,
            amounts=amounts,
            **fields,
        )
        took = time.process_time() - begun
        found = float(sc.perplexity(model, text, context=CONTEXT))
        append(rows, (*key, f"{found:.3f}", f"{took:.1f}"))
        done.add(key)


def jobs() -> Iterator[tuple[int, str, str, str]]:
    """Seed, OWL or not, amount, method: what says most comes first, so that it can be stopped."""
    several = [method for method in METHODS if method != "magnitude"]  # which looks at no data
    published = several[:3]
    for amount in AMOUNTS:
        yield 0, "no", amount, "magnitude"
        yield from ((0, "no", amount, method) for method in published)
    yield from ((seed, "no", "70 %", method) for seed in (1, 2) for method in published)
    yield from ((0, "yes", "70 %", method) for method in METHODS if method != several[3])
    yield from ((seed, "no", "2:4", method) for seed in (1, 2) for method in published)
    yield from ((0, "no", amount, several[3]) for amount in ("70 %", "2:4"))
    yield from ((seed, "no", "60 %", method) for seed in (1, 2) for method in published)
    for seed in range(3):
        yield from ((seed, "no", amount, method) for amount in AMOUNTS for method in several)
    for seed in range(3):
        for amount in AMOUNTS[:3]:  # 2:4 leaves nothing to share out
            yield from ((seed, "yes", amount, method) for method in METHODS)


def append(rows: Path, row: tuple[str, ...]) -> None:
    """One more line, on the screen too."""
    print(*row, sep=",", flush=True)
    with rows.open("a") as file:
        file.write(",".join(row) + "\n")


def table(path: Path) -> None:
    """Means over the seeds, and how far they scatter."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns = [(amount, owl) for amount in AMOUNTS for owl in ("no", "yes") if amount != "2:4"]
    columns.append(("2:4", "no"))
    heads = [f"{amount}{', OWL' if owl == 'yes' else ''}" for amount, owl in columns]
    print("| method |", " | ".join(heads), "| s |")
    print("| --- " * (len(heads) + 2) + "|")
    for method in METHODS:
        cells, seconds = [], []
        for amount, owl in columns:
            mine = [
                row
                for row in rows
                if (row["amount"], row["owl"], row["method"]) == (amount, owl, method)
            ]
            values = [float(row["perplexity"]) for row in mine]
            seconds += [float(row["seconds"]) for row in mine]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.2f}{spread}" if values else "")
        print(f"| {method} |", " | ".join(cells), f"| {mean(seconds):.1f} |")


def main(task: str, *given: str) -> None:
    """Train, prune, or print the table."""
    if task == "train":
        out = Path(given[1])
        out.mkdir(parents=True, exist_ok=True)
        tokens, test = make_tokens(Path(given[0]), out)
        train(build(), tokens, test, out, float(given[2]) if len(given) > 2 else 45)
    elif task == "prune":
        measure(Path(given[0]), Path(given[1]))
    else:
        table(Path(given[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
