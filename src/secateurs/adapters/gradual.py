"""What both adapters share: pruning over the steps of somebody else's loop, and resuming it."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from secateurs.base.parameters import is_sharded
from secateurs.base.prunable import prunable
from secateurs.base.sharding import local, local_mask
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import sparsity_report
from secateurs.optim.holding import unwrap_optimizer
from secateurs.prune import GradualPruning, Recipe

_log = logging.getLogger("secateurs.adapters")


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The steps of a run in which it is pruned, as shares of its length."""

    start: float = 0.1
    end: float = 0.7
    cuts: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= 1:
            raise ArgumentError(
                f"start={self.start!r}, end={self.end!r}: give fractions of the run with 0 <= "
                "start < end <= 1."
            )
        if isinstance(self.cuts, bool) or not isinstance(self.cuts, int) or self.cuts < 1:
            raise ArgumentError(f"cuts={self.cuts!r} is not a positive whole number.")

    def steps(self, total: int) -> tuple[int, int, int]:
        """First and last step, and the steps between two cuts."""
        first, last = int(self.start * total), max(1, int(self.end * total))
        if last <= first:
            raise ArgumentError(
                f"a run of {total} steps is too short: pruning from start={self.start} to"
                f" end={self.end} would take no step. Train longer, or give them further apart."
            )
        # Rounded up: better one cut fewer than asked for than one more.
        every = max(1, math.ceil((last - first) / self.cuts))
        return first, last, every


class Pruner:
    """A `GradualPruning` that begins when the loop has its model and optimizer.

    `saved` is the state to go on from, as `state` gave it: from a checkpoint, or from the end of
    the run before in this process.
    """

    def __init__(self, recipe: Recipe, when: When, given: Mapping[str, Any]) -> None:
        self.recipe, self.when, self.given = recipe, when, dict(given)
        self.gradual: GradualPruning | None = None
        self.saved: Mapping[str, Any] | None = None
        self._holds = False

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks held, by parameter name, True = kept; those of the checkpoint, where it is of
        the last step and nothing is trained any more.
        """
        if self.gradual is not None:
            return self.gradual.masks
        return {} if self.saved is None else dict(self.saved["masks"])

    def begin(self, model: nn.Module, optimizer: object, steps: int, *, done: int = 0) -> None:
        """Hold from now on, and cut over the shares of a run of `steps` optimizer steps.

        After `done` steps of a run that goes on, the masks and the cuts to come are those saved.
        """
        broken_off = self._holds
        self.release()
        saved = self.saved if done else None
        first, last, every = self.when.steps(steps)
        if saved is not None:
            self._check(model, saved, steps, done, broken_off)
            first, last, every = saved["span"]
        # accelerate wraps the optimizer, and hooks on the wrapper would never run.
        inner = unwrap_optimizer(optimizer)
        gradual = GradualPruning(
            model,
            self.recipe,
            inner,
            start=first,
            end=last,
            every=every,
            **self.given,
        )
        try:
            if done:
                gradual.load_state_dict(saved or _infer_state(gradual, model, done))
                # A checkpoint may be written after the optimizer's step and before ours.
                if gradual.iteration < done:
                    gradual.step()
        except Exception:
            gradual.held.release()
            raise
        self.gradual, self._span, self._holds = gradual, (first, last, every), True

    def step(self) -> None:
        """Count an optimizer step; prune where a cut is due."""
        if self.gradual is not None:
            self.gradual.step()

    def report(self, log: Callable[[dict[str, float]], object]) -> None:
        """Report the share of zeros through the loop's own logging."""
        if self.gradual is not None:
            masks = self.gradual.masks
            log({"sparsity": sparsity_report(masks).total.sparsity})

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint written now needs; None before the first step.

        "nonzero" counts the weights that are not zero, by which the right weights are known.
        """
        if self.gradual is None:
            return None
        weights = prunable(self.gradual.model, self.recipe.where)
        return {
            **self.gradual.state_dict(),
            "span": list(self._span),
            "when": asdict(self.when),
            "recipe": self._description(),
            "nonzero": {
                name: int(weight.count_nonzero())
                for name, weight in weights.items()
                if not is_sharded(weight)
            },
        }

    def end(self) -> None:
        """Stop holding; the zeros stay in the weights."""
        if self.gradual is not None:
            # Once more before letting go: the loop may have loaded its best checkpoint,
            # from before the cuts.
            self.gradual.held.enforce()
            # A loop that is started again in this process goes on from here.
            self.saved = self.state()
        self.release()

    def release(self) -> None:
        """Stop holding, and leave the weights as they are, such as after an error."""
        if self.gradual is not None:
            self.gradual.held.release()
        self._holds = False

    def _description(self) -> dict[str, Any]:
        # Through JSON, so that what was saved and what is asked compare equal.
        described: dict[str, Any] = json.loads(json.dumps(self.recipe.as_dict()))
        return described

    def _check(
        self,
        model: nn.Module,
        saved: Mapping[str, Any],
        steps: int,
        done: int,
        broken_off: bool,
    ) -> None:
        """Raise unless the saved state belongs to this run."""
        problems = []
        if saved["when"] != asdict(self.when):
            problems.append(
                f"it was pruned with {_options(saved['when'])}, this callback has"
                f" {_options(asdict(self.when))}"
            )
        if saved["recipe"] != self._description():
            problems.append(
                f"its recipe was {_options(saved['recipe'])}, this one is"
                f" {_options(self._description())}"
            )
        if not 0 <= done - saved["iteration"] <= 1:
            problems.append(
                f"its pruning state is from step {saved['iteration']}, its weights from step {done}"
            )
        if saved["iteration"] < saved["span"][1] > steps:
            problems.append(
                f"its last cut is due at step {saved['span'][1]}, but this run ends at {steps}"
            )
        # Weights of another run would be compared with masks that are not theirs.
        problems = problems or _other_weights(model, saved, self.recipe)
        if problems:
            hint = (
                " A run that was interrupted in this process still held its zeros while the"
                " checkpoint was loaded: create a new model, Trainer and callback."
                if broken_off
                else " Resume the checkpoint with the callback it was made with."
            )
            raise TrainingError(
                f"cannot resume pruning from the checkpoint of step {done}: {'; '.join(problems)}."
                + hint
            )


def read_state(saved: Mapping[str, Any], masks: Mapping[str, Tensor], place: str) -> dict[str, Any]:
    """The state in a checkpoint, in the form that `Pruner.state` gives; anything else raises."""
    try:
        state = {
            "masks": dict(masks),
            "iteration": int(saved["iteration"]),
            "rounds": [[int(count) for count in row] for row in saved["rounds"]],
            "due": [int(step) for step in saved["due"]],
            "keep": [
                {str(name): int(count) for name, count in target.items()}
                if isinstance(target, Mapping)
                else int(target)
                for target in saved["keep"]
            ],
            "generator": saved["generator"],
            "span": tuple(int(step) for step in saved["span"]),
            "when": dict(saved["when"]),
            "recipe": dict(saved["recipe"]),
            "nonzero": {str(n): int(count) for n, count in saved["nonzero"].items()},
        }
        whole = (
            len(state["span"]) == 3
            and len(state["due"]) == len(state["keep"]) > 0
            and all(len(row) == 4 for row in state["rounds"])
            and isinstance(state["generator"], Tensor | None)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"{place}: the pruning state cannot be read ({type(error).__name__}: {error}). Resume"
            " from another checkpoint."
        ) from None
    if not whole:
        raise TrainingError(
            f"{place}: the pruning state is damaged. Resume from another checkpoint."
        )
    return state


def _other_weights(model: nn.Module, saved: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Describe the parameters whose zeros are not those of the saved state."""
    problems = []
    for name, parameter in prunable(model, recipe.where).items():
        mask = saved["masks"].get(name)
        if mask is None or mask.shape != parameter.shape:
            continue  # refused by name, with the masks
        weight = local(parameter.detach())
        alive = int(weight[~local_mask(mask, parameter).to(weight.device)].count_nonzero())
        nonzero, expected = int(weight.count_nonzero()), saved["nonzero"].get(name)
        if alive:
            problems.append(f"{name!r} has {alive} weights that its mask drops")
        elif expected is not None and not is_sharded(parameter) and nonzero != expected:
            kind = "sparser" if nonzero < expected else "denser"
            problems.append(
                f"{name!r} is {kind} than it was saved ({nonzero} weights that are not zero,"
                f" {expected} then)"
            )
    return problems


def _infer_state(gradual: GradualPruning, model: nn.Module, done: int) -> dict[str, Any]:
    """The state after `done` steps where none was saved, if the weights prove it.

    Before the first cut nothing is lost. After it every dropped weight is zero; where exactly as
    many weights are not zero as the last cut kept, the zeros are therefore the masks.
    """
    weights = {
        name: parameter.detach()
        for name, parameter in prunable(model, gradual.recipe.where).items()
    }
    kept = gradual.kept_after(done)
    state = {**gradual.state_dict(), "iteration": done}
    if kept is None:
        return state
    if not any(is_sharded(weight) for weight in weights.values()):
        masks = {name: weight != 0 for name, weight in weights.items()}
        counts = {name: int(mask.sum()) for name, mask in masks.items()}
        if counts == kept if isinstance(kept, Mapping) else sum(counts.values()) == kept:
            _log.warning(
                "the checkpoint of step %d has no pruning state; exactly as many weights are not"
                " zero as the last cut kept, so the zeros are taken as the masks.",
                done,
            )
            return {**state, "masks": masks}
    wanted = sum(kept.values()) if isinstance(kept, Mapping) else kept
    total = sum(weight.numel() for weight in weights.values())
    left = sum(int(weight.count_nonzero()) for weight in weights.values())
    raise TrainingError(
        f"the run resumes at step {done}, but its checkpoint has no pruning state: by that step "
        f"{wanted} of {total} weights should be kept, and {left} are nonzero. Resume from a "
        "checkpoint that this callback wrote, with the same settings; or start a new run and pass "
        "the existing masks as within=."
    )


def _options(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())
