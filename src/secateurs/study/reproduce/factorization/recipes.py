"""Which recipe a row was made by: the paper's text and every departure from it are kept apart."""

from collections.abc import Mapping

TEXT = "the text"
RESTORED = "variance restored"
OURS = "ours"


def recipe_of(row: Mapping[str, str]) -> str:
    """The text of the paper, or what differs from it.

    "the text": Algorithm 1 as printed, rate 0.15, constant λ. "variance restored": the same, with
    factors scaled so that their product has the variance of the standard initialisation, which the
    truncation took away. "ours": λ moves, the rate is larger, fine-tuning follows.
    """
    if row["method"] != "dwf":
        return "tuned" if row["tune"] != "0" else ""
    if (row["ramp"], row["relax"]) != ("0", "0"):
        return OURS
    differing = [f"init {row['init']}"] if row["init"] != "dwf" else []
    differing += [f"sigma × {row['spread']}"] if row["spread"] != "1" else []
    differing += [RESTORED] if row["match_variance"] == "True" else []
    differing += [f"rate {row['rate']}"] if row["rate"] != "0.15" else []
    differing += ["tuned"] if row["tune"] != "0" else []
    return ", ".join(differing) or TEXT


def method_of(row: Mapping[str, str]) -> str:
    """As the paper's tables name it."""
    return f"dwf-depth-{row['depth']}" if row["method"] == "dwf" else row["method"]


def columns_of(recipe: str) -> tuple[str, str]:
    """Compression and accuracy: after fine-tuning where there is some, else as trained."""
    tuned = recipe == OURS or "tuned" in recipe
    return (
        ("gap_compression", "tuned_accuracy")
        if tuned
        else ("compression", "accuracy")
    )
