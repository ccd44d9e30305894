"""Which recipe a row was made by: the paper's text and every departure from it are kept apart."""

from collections.abc import Mapping

START = "two deviations"
TEXT = "the text"
RESTORED = "variance restored"
OURS = "ours"
OURS_AS_PRINTED = "ours, from the printed start"


def recipe_of(row: Mapping[str, str]) -> str:
    """The recipe of the paper, or what differs from it.

    "two deviations": Algorithm 1 with factors cut at two of their standard deviations, rate 0.15,
    constant λ: print's curves come out. "the text": the same with the upper end as printed.
    "variance restored": as "the text", with factors scaled so that their product has the variance
    of the standard initialisation. "ours": λ moves, the rate is larger, fine-tuning follows.
    """
    if row["method"] != "dwf":
        return "tuned" if row["tune"] != "0" else ""
    start = {"dwf": START, "dwf-as-printed": TEXT}.get(
        row["init"], f"init {row['init']}"
    )
    if (row["ramp"], row["relax"]) != ("0", "0"):
        return {START: OURS, TEXT: OURS_AS_PRINTED}.get(start, f"{OURS}, {start}")
    if start == TEXT and row["match_variance"] == "True":
        parts = [RESTORED]
    else:
        parts = [start] + ([RESTORED] if row["match_variance"] == "True" else [])
    parts += [f"sigma × {row['spread']}"] if row["spread"] != "1" else []
    parts += [f"rate {row['rate']}"] if row["rate"] != "0.15" else []
    parts += ["tuned"] if row["tune"] != "0" else []
    return ", ".join(parts)


def method_of(row: Mapping[str, str]) -> str:
    """As the paper's tables name it."""
    return f"dwf-depth-{row['depth']}" if row["method"] == "dwf" else row["method"]


def columns_of(recipe: str) -> tuple[str, str]:
    """Compression and accuracy: after fine-tuning where there is some, else as trained."""
    tuned = recipe.startswith(OURS) or "tuned" in recipe
    return (
        ("gap_compression", "tuned_accuracy")
        if tuned
        else ("compression", "accuracy")
    )
