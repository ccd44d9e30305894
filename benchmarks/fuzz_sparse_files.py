"""Coverage-guided fuzzing of the reader of sparse files: an input is read or refused, nothing else.

pip install atheris
python benchmarks/fuzz_sparse_files.py [-max_total_time=600] [other options of libFuzzer]

Two thirds of the inputs are sealed after they were changed, so that the decoders behind the seal
are reached.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["secateurs.files", "secateurs.base.safefile"]):
    import secateurs.files.read as reading

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from files import forging
from secateurs.errors import SparseFileError
from secateurs.files.description import deflate

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
# Dense bytes a file may claim: what is tried here is the reader, not the machine.
MEMORY = 1 << 26
counts = {"read": 0, "refused": 0}


def try_one(data):
    """The first byte says whether the rest is a file, or data and a description to be sealed."""
    kind, blob = data[:1], data[1:]
    if kind and kind[0] % 3 == 1:
        blob = forging.sealed([blob])
    elif kind and kind[0] % 3 == 2 and b"\n" in blob:
        blob = _packed(blob)
    path = FOLDER / "input"
    path.write_bytes(blob)
    try:
        file = reading.read_sparse(path, at_most=MEMORY)
    except SparseFileError:
        counts["refused"] += 1
        return
    counts["read"] += 1
    if sum(tensor.nbytes for tensor in file.tensors.values()) != file.sizes.dense_bytes:
        raise RuntimeError("a tensor is not as large as the file says")


def _packed(blob):
    """A description in plain text, up to a zero byte, and the streams behind it."""
    text, _, streams = blob.partition(b"\0")
    return forging.sealed([deflate(text, 6), streams])


def seeds(folder):
    """Honest files in the three forms that `try_one` knows."""
    for values in ("exact", "int8", "bf16"):
        blob = forging.honest(FOLDER, values)
        text, streams = forging.text_of(blob)
        plain = text.encode() + b"\0" + streams
        for kind, content in enumerate((blob, forging.data_of(blob), plain)):
            (folder / f"{values}-{kind}").write_bytes(bytes([kind]) + content)


if __name__ == "__main__":
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    seeds(corpus)
    options = sys.argv[1:] or ["-max_total_time=600"]
    atheris.Setup(
        [
            sys.argv[0],
            "-max_len=8192",
            "-timeout=600",
            "-rss_limit_mb=2048",
            *options,
            str(corpus),
        ],
        try_one,
    )
    atheris.Fuzz()
