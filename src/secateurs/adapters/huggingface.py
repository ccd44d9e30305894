"""Pruning inside the Trainer of Hugging Face."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from secateurs.adapters.gradual import Pruner, When, read_state
from secateurs.base.safefile import replacing
from secateurs.errors import MissingExtra, TrainingError
from secateurs.masks import load_masks, save_masks
from secateurs.prune import Recipe

try:
    from transformers import TrainerCallback
except ImportError:
    # Raised when a callback is made, so that the module can be imported without transformers.
    TrainerCallback = object

_log = logging.getLogger("secateurs.adapters")


class PruningCallback(TrainerCallback):  # type: ignore[misc]
    """Prune gradually while a `transformers.Trainer` trains, hold the zeros, log the sparsity.

    Args:
        recipe: What to prune, as for `prune_`: score, amount, scope, pattern, where.
        start, end: When, as shares of the run.
        cuts: In how many cuts.
        resume_from: The checkpoint folder given to `train(resume_from_checkpoint=...)`, where it
            does not lie in the Trainer's output folder.
        given: What the score needs: example, batch, loss, generator, within.

    The masks are in `.masks` afterwards; the zeros stay in the weights. Every checkpoint holds the
    masks and the state of the schedule, and a resumed run goes on from them; where they are missing
    or do not fit the weights, it is refused.

    >>> from secateurs import Recipe
    >>> callback = PruningCallback(Recipe(sparsity=0.9), cuts=20)  # doctest: +SKIP
    >>> # Trainer(model=model, args=args, train_dataset=data, callbacks=[callback]).train()
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        start: float = 0.1,
        end: float = 0.7,
        cuts: int = 20,
        resume_from: str | os.PathLike[str] | None = None,
        **given: Any,
    ) -> None:
        if TrainerCallback is object:
            raise MissingExtra.of("transformers", extra="hf")
        self._resume_from = resume_from
        self._pruner = Pruner(recipe, When(start=start, end=end, cuts=cuts), given)

    @property
    def masks(self) -> dict[str, Any]:
        """The masks held, by parameter name, True = kept."""
        return self._pruner.masks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model and the optimizer are there: begin to hold, or go on from a checkpoint."""
        done = state.global_step
        if done and (saved := self._read(args, done)) is not None:
            self._pruner.saved = saved
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._pruner.begin(model, optimizer, state.max_steps, done=done)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After each optimizer step."""
        self._pruner.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the sparsity beside the loss."""
        # The Trainer has already copied the figures into its history, so both are updated.
        for row in (
            kwargs.get("logs"),
            state.log_history[-1] if state.log_history else None,
        ):
            if row is not None:
                self._pruner.report(row.update)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put masks and schedule beside the other files of the checkpoint."""
        saved = self._pruner.state()
        if saved is None or not args.should_save:
            return
        folder = _folder(args, state.global_step)
        if not folder.is_dir():
            _log.warning("%s: no such folder, the pruning state is not saved.", folder)
            return
        masks, numbers = saved.pop("masks"), saved["generator"]
        saved["generator"] = None if numbers is None else numbers.tolist()
        # The masks first: where the small file is there, the checkpoint is whole.
        small, large = self._files(folder)
        save_masks(masks, large)
        with replacing(small, error=TrainingError) as part:
            part.write_text(json.dumps(saved, indent=1), encoding="utf-8")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop holding."""
        self._pruner.end()

    def _files(self, folder: Path) -> tuple[Path, Path]:
        """The state of the schedule, and the masks. Callbacks for other parameters have others."""
        where = self._pruner.recipe.as_dict().get("where")
        mark = (
            ""
            if where is None
            else "-" + hashlib.blake2b(repr(where).encode(), digest_size=4).hexdigest()
        )
        return folder / f"pruning{mark}.json", folder / f"pruning{mark}.safetensors"

    def _read(self, args: Any, done: int) -> Mapping[str, Any] | None:
        """The state in the checkpoint that the Trainer resumes from; None where it has none."""
        # The Trainer gives its callbacks the step, not the folder.
        given = getattr(args, "resume_from_checkpoint", None)
        folders = [
            *([Path(self._resume_from)] if self._resume_from is not None else []),
            *([Path(given)] if isinstance(given, str) and Path(given).is_dir() else []),
            _folder(args, done),
        ]
        for small, large in map(self._files, folders):
            if small.exists():
                return _load(small, large)
        return None


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _load(small: Path, large: Path) -> dict[str, Any]:
    try:
        fields = json.loads(small.read_text(encoding="utf-8"))
        if isinstance(fields, dict) and isinstance(fields.get("generator"), list):
            fields["generator"] = torch.tensor(fields["generator"], dtype=torch.uint8)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"{small}: the pruning state cannot be read ({error}). Resume from another checkpoint."
        ) from None
    return read_state(fields, load_masks(large), str(small))
