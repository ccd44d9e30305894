"""How much memory and time does it take to prune a checkpoint where it lies?

python benchmarks/prune_file.py [GIGABYTES] [FOLDER]      prints a table (Markdown)

A folder of two shards in bfloat16 with the shapes of a small Llama, random weights. Each row is a
process of its own; memory is the most it ever had resident, beside what an import alone takes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, INNER, WORDS = 2048, 5632, 32000
ROWS = {
    "import only": None,
    "magnitude, global": {"sparsity": 0.5},
    "magnitude, layer": {"sparsity": 0.5, "scope": "layer"},
    "magnitude, row": {"sparsity": 0.5, "scope": "row"},
    "magnitude, 2:4": {"pattern": "2:4"},
    "random, global": {"sparsity": 0.5, "score": "random"},
    "inspect": "inspect",
}


def layer(number):
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (256, WIDTH),
        "self_attn.v_proj": (256, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    return {
        f"model.layers.{number}.{name}.weight": torch.randn(shape).bfloat16()
        for name, shape in shapes.items()
    }


def make(folder, gigabytes):
    """Two shards and their index; returns the bytes of weights."""
    folder.mkdir()
    layers = max(2, round(gigabytes * 1e9 / sum(t.nbytes for t in layer(0).values())))
    places, total = {}, 0
    for shard in range(2):
        state = {}
        if not shard:
            state["model.embed_tokens.weight"] = torch.randn(WORDS, WIDTH).bfloat16()
        for number in range(shard * layers // 2, (shard + 1) * layers // 2):
            state |= layer(number)
        name = f"model-0000{shard + 1}-of-00002.safetensors"
        save_file(state, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(state, name)
        total += sum(t.nbytes for t in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def work(folder, row):
    """One row, in this process: seconds, and the most bytes resident."""
    from secateurs.llm import prune_file
    from secateurs.llm.on_disk import count_stored
    from secateurs.llm.shards import open_stored

    # Linux hands the peak of the parent on to the child: it begins anew here.
    Path("/proc/self/clear_refs").write_text("5")
    begin, found = time.perf_counter(), 0.0
    options = ROWS[row]
    if options == "inspect":
        found = count_stored(open_stored(folder)).sparsity
    elif options is not None:
        out = folder.parent / "pruned"
        found = prune_file(folder, out, **options).report.sparsity
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
    seconds = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if "VmHWM" in line) * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "sparsity": found}))


def main(gigabytes, root):
    with tempfile.TemporaryDirectory(dir=root) as place:
        folder = Path(place) / "model"
        torch.manual_seed(0)
        total = make(folder, gigabytes)
        print(f"{total / 1e9:.2f} GB in two shards of bfloat16\n")
        print("| what | s | GB/s | peak memory, MB | above the import, MB | sparsity |")
        print("| --- | --- | --- | --- | --- | --- |")
        base = None
        for row in ROWS:
            command = [sys.executable, __file__, "work", str(folder), row]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            told = json.loads(done.stdout)
            base = base or told["peak"]
            speed = f"{total / told['seconds'] / 1e9:.2f}" if ROWS[row] else "–"
            print(
                f"| {row} | {told['seconds']:.1f} | {speed} | {told['peak'] / 1e6:.0f} |"
                f" {(told['peak'] - base) / 1e6:.0f} | {told['sparsity']:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        given = sys.argv[1:]
        main(float(given[0]) if given else 1.5, given[1] if given[1:] else None)
