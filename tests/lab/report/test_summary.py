"""A study as Markdown: the numbers are those of the rows, the best and the worst are named."""

from dataclasses import replace

from secateurs_lab.report import page, write_page
from secateurs_lab.report.page import methods_paragraph
from secateurs_lab.report.summary import summary
from secateurs_lab.study import Choice, Data, Prune, RigLMethod, SETMethod, Store, Study, Tuning
from secateurs_lab.study.config import waiting_row

RIGL = Choice(label="RigL", candidates=[RigLMethod(train={"lr": r}) for r in (0.05, 0.1)])
STUDY = Study(
    name="fair",
    methods=[RIGL, SETMethod(), Prune(label="one <shot>")],
    data=Data(name="digits"),
    compressions=[10],
    seeds=[0, 1, 2],
    tuning=Tuning(compression=10, held_out=300),
)


def accuracy_of(run):
    """RigL loses to SET; its second candidate is the better one."""
    base = {"rigl": 0.6, "set": 0.8, "prune": 0.7, "dense": 0.9}[run.method.kind]
    return (
        base
        + 0.01 * (run.seed % 1000)
        + (0.1 if run.train.lr == 0.1 and run.data.held_out else 0.0)
    )


def rows():
    tuning = [ended(run) for run in STUDY.runs()]
    return [ended(run) for run in STUDY.runs(STUDY.choose(tuning))]


def ended(run):
    steps = {"rigl": 10.0, "set": 20.0, "prune": 30.0, "dense": 100.0}[run.method.kind]
    return replace(
        waiting_row(run),
        state="done",
        accuracy=accuracy_of(run),
        compression=run.compression,
        total=1000,
        metrics={"cost.steps": steps},
    )


def test_the_best_and_the_worst_are_named_with_their_numbers():
    text = summary(rows(), name="fair")
    assert "| set | 81.00 (80.00–82.00) |" in text
    assert "| one &lt;shot&gt; | 71.00 (70.00–72.00) |" in text
    assert "* 10×: best is set (81.00), worst is RigL (61.00)." in text
    assert "The dense network has 91.00." in text
    # What a run began from costs as well.
    assert "| one &lt;shot&gt; | 130.0 |" in text and "| RigL | 10.0 |" in text


def test_the_budget_and_every_choice_are_printed():
    text = summary(rows(), name="fair")
    assert "Tuning runs: 2 for each of 1 methods; at 10×, seed 1000, on the last 300" in text
    assert "| RigL | lr 0.05 |" in text
    chosen = [line for line in text.splitlines() if line.endswith("| chosen |")]
    assert len(chosen) == 1 and "lr 0.1" in chosen[0]


def test_what_lands_elsewhere_or_fails_says_so():
    found = [
        replace(row, compression=25.0)
        if row.label == "set"
        else replace(row, state="failed", reason="oops", accuracy=None)
        if row.label == "RigL"
        else row
        for row in rows()
    ]
    found = [
        replace(row, state="diverged", accuracy=None)
        if row.label == "one <shot>" and row.seed == 1
        else row
        for row in found
    ]
    text = summary(found, name="fair")
    assert "| one &lt;shot&gt; | 71.00 (70.00–72.00), 1 of 3 lost |" in text
    assert "| set | 81.00 (80.00–82.00) at 25× |" in text
    assert "worst is one &lt;shot&gt; (71.00). Lost with every seed: RigL." in text
    assert "| RigL | –, 3 lost |" in text and "* RigL, seed 2, 10×: failed, oops" in text


def test_a_page_that_ends_in_md_is_this_text(tmp_path):
    Store.create(tmp_path / "a.study").close()
    page = write_page(tmp_path / "a.study", tmp_path / "page.md")
    assert page.read_text(encoding="utf-8").startswith("# a\n")


def test_a_page_begins_with_the_comparison_and_folds_the_tuning():
    text = page(rows(), name="fair")
    compared, tuned = (
        text.index("<h2>lenet-300-100 on digits</h2>"),
        text.index(", 300 held out</h2>"),
    )
    folded = text.index("<details><summary>Tuning on held-out images; chosen: RigL, candidate 2<")
    assert compared < folded < tuned < text.index("<h2>Methods</h2>")


def test_settings_that_do_nothing_are_left_out_of_the_paragraph():
    said = dict(methods_paragraph(rows()))
    shared = said["All runs share"]
    assert "schedule cosine" in shared and "momentum 0.9" in shared
    for idle in ("none", "decay_at", "nesterov", "weight_decay", "warmup", " no"):
        assert idle not in shared, idle
    assert "fraction 0.3" in said["RigL"] and "none" not in said["RigL"]
    stepped = [
        replace(
            row, settings={**row.settings, "train": {**row.settings["train"], "schedule": "step"}}
        )
        for row in rows()
    ]
    assert "decay_at" in dict(methods_paragraph(stepped))["All runs share"]


def test_a_page_without_tuning_folds_nothing():
    untuned = [row for row in rows() if ", candidate " not in row.label]
    assert "Tuning on held-out" not in page(untuned, name="fair")
