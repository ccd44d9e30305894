"""The study of the paths paper in miniature: Φ-masks identical after rescaling, magnitude's are
not.
"""

from dataclasses import replace

import torch

from secateurs.study.reproduce import path_pruning as paths

TINY = paths.PathSettings(epochs=2, rewind=1, width=4, percents=(60,))


def test_tables_and_scatter():
    trained = paths.train(TINY)
    rows = paths.mask_overlaps(trained, TINY)
    assert {row.pair for row in rows} == {"magnitude-vs-path-global", "magnitude-vs-path-layerwise"}
    assert all(20 < row.overlap <= 100 and 70 <= row.paper <= 96 for row in rows)
    table = list(paths.retrainings(trained, TINY))
    assert len(table) == 6 and all(0 <= row.accuracy <= 100 for row in table)
    assert all(
        row.same_mask == (row.method != "magnitude-layerwise" or not row.rescaled) for row in table
    )
    cells = {(row.method, row.rescaled): row for row in table}
    assert cells["path-global", True].accuracy == cells["path-global", False].accuracy
    assert (
        cells["magnitude-layerwise", True].paper == 57.5
        and cells["path-layerwise", True].paper == 68.1
    )
    points = paths.scatter(trained)
    assert all(m.shape == c.shape and bool((c >= 0).all()) for m, c in points.values())


def test_a_study_is_repeatable():
    one, two = (paths.train(replace(TINY, epochs=1, rewind=1)) for _ in range(2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True)
    )
