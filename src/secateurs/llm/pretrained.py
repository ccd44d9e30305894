"""Models of transformers in folders, as transformers writes them, with sparse files for weights."""

import copy
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from secateurs.base.json_object import quote
from secateurs.base.parameters import check_model
from secateurs.base.safefile import refusing, replacing
from secateurs.base.sizes import ChangedSizes, changed_sizes, count_all_blocks_
from secateurs.base.untrusted import reading
from secateurs.errors import (
    ArgumentError,
    MissingExtra,
    SecateursError,
    ShipError,
    SparseFileError,
    first_line,
)
from secateurs.files import FileSizes
from secateurs.files.read import (
    claims_of,
    fit_shards_,
    load_shards,
    most_dense_bytes,
    notes_of,
    read_container,
)
from secateurs.files.write import Provable, check_certificate, record_of, write_sparse
from secateurs.llm.card import refuse_foreign_certificate, write_card
from secateurs.llm.unpacking import strip_sparsity_config

INDEX = "sparse.safetensors.index.json"
"""The file that names the others, with the SHA-256 of each: written last."""

_FORMAT = "secateurs.shards/1"

_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
"""What tokenizers and processors of transformers write."""


def save_pretrained(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    values: str = "exact",
    shard_bytes: int = 5_000_000_000,
    how: str = "",
    certificate: Provable | Mapping[str, Any] | None = None,
) -> tuple[FileSizes, ...]:
    """Write a model of transformers into a folder: its configurations, its weights as sparse files,
    and a card for a hub.

    Args:
        model: any `PreTrainedModel`, pruned, compacted, with blocks dropped, or as it was.
        folder: is made where it is missing.
        tokenizer: a tokenizer or processor, whose files are written, too; or a folder that has such
            files, from which they are copied.
        values: "exact", "bf16", "fp16" or "int8", as for `save_sparse`.
        shard_bytes: the dense bytes of one sparse file; a larger model is shared out among several.
        how: a line for the card on how the model was made, such as "magnitude, 80 %, fine-tuned for
            an epoch".
        certificate: what is proven about this model, as `certify` returns it; it is written beside
            the weights as `certificate.json`. One of other weights is refused.

    Returns the sizes of the files. `from_pretrained(folder)` gives the model again. A folder that
    was written half is refused there.

    The card is README.md: tags, and a table with the sparsity, how it was made and the certificate.
    A file that is there keeps its text; the table stands between two comments, and is replaced when
    the folder is written again. No `sparsity_config` is written into the configuration.
    """
    transformers = _transformers()
    check_model(model)
    if not isinstance(model, transformers.PreTrainedModel):
        raise ArgumentError(
            f"a {type(model).__name__} is not a model of transformers. Merge a model wrapped by "
            "peft first (`sc.llm.merge_lora`); write any other with `save_sparse`."
        )
    if shard_bytes < 1:
        raise ArgumentError(f"shard_bytes={shard_bytes!r} is below 1.")
    folder = Path(folder)
    # Before anything is written: a tokenizer that cannot be is no reason for half a folder.
    files = _tokenizer_files(tokenizer)
    record = None
    if certificate is not None:
        record = _record_for(model, certificate, values)
        refuse_foreign_certificate(folder)
    shards = list(_shards(model, shard_bytes))
    with refusing(folder / INDEX, SparseFileError):
        folder.mkdir(parents=True, exist_ok=True)
    sizes, notes = changed_sizes(model), _buffer_dtypes(model)
    written, seals = [], {}
    for number, tensors in enumerate(shards, 1):
        name = f"sparse-{number:05}-of-{len(shards):05}.safetensors"
        first = number == 1
        written.append(
            write_sparse(
                tensors,
                folder / name,
                sizes if first else ChangedSizes(),
                notes=notes if first else None,
                values=values,
            )
        )
        seals[name] = _seal(folder / name)
    _save_configurations(model, folder)
    if files is None and tokenizer is not None:
        tokenizer.save_pretrained(folder)
    for file in files or ():
        if file.parent.resolve() != folder.resolve():
            shutil.copyfile(file, folder / file.name)
    with replacing(folder / INDEX, error=SparseFileError) as part:
        part.write_text(json.dumps({"format": _FORMAT, "files": seals}, indent=1), encoding="utf-8")
    for old in set(folder.glob("sparse-*-of-*.safetensors")) - {folder / name for name in seals}:
        old.unlink()
    size = sum(one.bytes for one in written)
    write_card(model, folder, how=how, certificate=record, bytes_written=size)
    return tuple(written)


def _record_for(
    model: nn.Module, certificate: Provable | Mapping[str, Any], values: str
) -> dict[str, Any]:
    """The certificate as plain values, of these weights."""
    if values != "exact":
        raise ArgumentError(
            f"values={values!r} rounds the weights, and the certificate says nothing about rounded"
            " ones. Save without it, certify what from_pretrained reads, and save that."
        )
    record, state = record_of(certificate), model.state_dict()
    check_certificate(record, state, state, values)
    return record


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    model_class: type[nn.Module] | None = None,
    at_most: int | None = None,
) -> nn.Module:
    """The model that `save_pretrained` wrote into a folder, in evaluation mode.

    Its class is the one that the configuration names; nothing is downloaded and no code of the
    folder is run.

    Args:
        folder: the folder.
        model_class: the class of a model that transformers itself does not have.
        at_most: how many dense bytes each file may unpack to; see `read_sparse`.
    """
    transformers = _transformers()
    folder = Path(folder)
    paths = _indexed(folder)
    config = _configuration(folder, transformers, model_class)
    kind = model_class or _named_class(config, folder, transformers)
    # Blocks may depend on their places: those that were dropped are made, too, and go again.
    count_all_blocks_(config)
    _check_size(config, kind, paths, at_most, own=model_class is not None)
    # A fresh model draws random numbers for weights that are replaced at once.
    with torch.random.fork_rng(devices=[]), _making(folder):
        model = kind(config)
    load_shards(paths, model, at_most=at_most)
    _set_buffer_dtypes_(model, notes_of(paths[0]), paths[0])
    if (folder / "generation_config.json").is_file() and hasattr(model, "generation_config"):
        kept = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        model.generation_config = kept
    return model.eval()


@contextmanager
def _making(folder: Path) -> Iterator[None]:
    """While a class makes a model of a configuration, which may hold anything."""
    try:
        yield
    except SecateursError:
        raise
    # Whatever the code of hundreds of models raises for sizes that do not go together.
    except Exception as error:
        raise ShipError(
            f"{folder}: no model can be made of the configuration"
            f" ({type(error).__name__}: {first_line(error)})."
        ) from error


def _check_size(
    config: Any,
    kind: Any,
    paths: list[Path],
    at_most: int | None,
    *,
    own: bool,
) -> None:
    """Make the model without memory, and compare it with what the files hold.

    A configuration of a few bytes can ask for any number of layers of any size, so both are counted
    while they are made.
    """
    folder = paths[0].parent
    claims, changed = claims_of(paths, at_most=at_most)
    dropped = max((b.total / len(b.kept) for b in changed.blocks.values()), default=1.0)
    # Tied tensors are made before they are tied, and not every module has tensors.
    most = int(4 * dropped * len(claims)) + 1_000
    limit = sum(most_dense_bytes(path.stat().st_size, at_most) for path in paths)
    made = {"modules": 0, "bytes": 0}

    def count(tensor: Any) -> None:
        if isinstance(tensor, Tensor):
            made["bytes"] += tensor.numel() * tensor.element_size()
        if made["bytes"] > limit:
            raise SparseFileError(
                f"{folder}: the configuration asks for over {limit:,} bytes, more than files of"
                " this size justify. If you trust it, raise the limit: at_most=."
            )

    def count_module(*_: Any) -> None:
        made["modules"] += 1
        if made["modules"] > most:
            raise SparseFileError(
                f"{folder}: the configuration asks for over {most:,} modules, and the files hold"
                f" {len(claims):,} tensors: it belongs to another model."
            )

    me = threading.get_ident()

    def mine(do: Callable[..., None]) -> Callable[..., None]:
        # The hooks are torch's own, for all threads.
        return lambda module, name, value: do(value) if threading.get_ident() == me else None

    handles = [
        register_module_parameter_registration_hook(mine(count)),
        register_module_buffer_registration_hook(mine(count)),
        register_module_module_registration_hook(mine(count_module)),
    ]
    try:
        with torch.random.fork_rng(devices=[]), _making(folder), torch.device("meta"):
            model = kind(copy.deepcopy(config))
    except ShipError as error:
        # A class of the user's own may compute with values as it is made, which `meta` has not.
        if not own or isinstance(error, SparseFileError):
            raise
        return
    finally:
        for handle in handles:
            handle.remove()
    fit_shards_(paths, model, at_most=at_most)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra.of("transformers", extra="hf") from None
    return transformers


def _save_configurations(model: Any, folder: Path) -> None:
    architectures = model.config.architectures
    # What transformers sets as it saves; the user's configuration stays as it is.
    model.config.architectures = [type(model).__name__]
    try:
        model.config.save_pretrained(folder)
        # A model that was read with one has it in its configuration.
        strip_sparsity_config(folder)
    finally:
        model.config.architectures = architectures
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)


def _tokenizer_files(tokenizer: Any) -> list[Path] | None:
    """The files to copy; None where there is a tokenizer that writes its own, or none."""
    if tokenizer is None or hasattr(tokenizer, "save_pretrained"):
        return None
    if not isinstance(tokenizer, str | os.PathLike):
        raise ArgumentError(
            f"tokenizer={type(tokenizer).__name__} is neither a tokenizer with `save_pretrained`"
            " nor a folder."
        )
    files = [file for name in _TOKENIZER if (file := Path(tokenizer) / name).is_file()]
    if not files:
        raise ArgumentError(
            f"tokenizer={str(tokenizer)!r} has none of the files of a tokenizer, such as"
            f" {_TOKENIZER[0]}: give a folder that has them, or the tokenizer itself."
        )
    return files


def _shards(model: nn.Module, most: int) -> Iterator[dict[str, Tensor]]:
    """The tensors by name, in parts of at most that many dense bytes; a tied tensor lies in one
    part with all its names.
    """
    names: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    part: dict[str, Tensor] = {}
    size = 0
    for tied in names.values():
        tensor = state[tied[0]]
        more = tensor.numel() * tensor.element_size()
        if part and size + more > most:
            yield part
            part, size = {}, 0
        part |= {name: state[name] for name in tied}
        size += more
    yield part


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Floating buffers that no file holds: tables computed when a model is made."""
    kept = model.state_dict(keep_vars=True)
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in kept and buffer.is_floating_point()
    }


def _buffer_dtypes(model: nn.Module) -> dict[str, str] | None:
    """`model.bfloat16()` rounds such tables, too: their dtypes as a note, where they are not those
    of a fresh model."""
    other = {n: str(b.dtype) for n, b in _buffers(model).items() if b.dtype != torch.float32}
    return {"buffers": json.dumps(other)} if other else None


def _set_buffer_dtypes_(model: nn.Module, notes: Mapping[str, str], path: Path) -> None:
    dtypes = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float64)}
    own = _buffers(model)
    try:
        wanted = json.loads(notes.get("buffers", "{}"))
        chosen = {name: (own[name], dtypes[dtype]) for name, dtype in wanted.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SparseFileError(
            f"{path}: the recorded dtypes of the buffers do not fit the model."
        ) from None
    for name, (buffer, dtype) in chosen.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = buffer.to(dtype)


def _seal(path: Path) -> str:
    """SHA-256 of the file."""
    digest = hashlib.sha256()
    with reading(path, SparseFileError), path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _indexed(folder: Path) -> list[Path]:
    """The sparse files of a folder, each the one that its index means."""
    index = folder / INDEX
    with reading(index, SparseFileError):
        text = index.read_bytes()[: 1 << 24]
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        held = None
    files = held.get("files") if isinstance(held, dict) else None
    if not isinstance(held, dict) or held.get("format") != _FORMAT or not files:
        raise SparseFileError(f"{index} is not an index of {_FORMAT!r}: save the model again.")
    if not isinstance(files, dict):
        raise SparseFileError(f"{index}: the files are not listed with their SHA-256 digests.")
    for name, seal in files.items():
        # Only plain names: a path could lead out of the folder.
        if Path(name).name != name or "\\" in name or not name.isprintable():
            raise SparseFileError(f"{index} names {quote(name)}, which is not a file beside it.")
        if _seal(folder / name) != seal:
            raise SparseFileError(
                f"{folder / name} is not the file that {INDEX} describes: it was damaged, or the "
                "folder was still being written. Save the model again."
            )
        if not read_container(folder / name).is_sparse:
            raise SparseFileError(f"{folder / name} is not a sparse file.")
    return [folder / name for name in files]


def _configuration(folder: Path, transformers: Any, model_class: Any) -> Any:
    kind = getattr(model_class, "config_class", None) or transformers.AutoConfig
    more = {"trust_remote_code": False} if kind is transformers.AutoConfig else {}
    try:
        return kind.from_pretrained(folder, local_files_only=True, **more)
    # Checks of hundreds of configurations raise anything for values that do not go together.
    except Exception as error:
        raise ShipError(
            f"{folder}: the configuration cannot be read ({str(error)[:200]}). For a class outside "
            "transformers, give model_class=."
        ) from error


def _named_class(config: Any, folder: Path, transformers: Any) -> Any:
    named = config.architectures
    # Of a file, which may say anything.
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        named = []
    kind = getattr(transformers, named[0], None) if named and named[0].isidentifier() else None
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        said = quote(named[0]) if named else "no class"
        raise ShipError(
            f"{folder}: the configuration names {said}, which is not a model of transformers: give"
            " model_class=."
        )
    return kind
