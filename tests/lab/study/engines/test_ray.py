"""The Ray engine on a cluster of two nodes, one of which is killed in the middle."""

import os
import sys
import threading
import time

import pytest

from secateurs_lab.study import Data, Dwf, How, Prune, Study, Training, run

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    # Ray's workers are nice, and would starve on a busy machine; they import from where we do.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    found = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    other = found.add_node(num_cpus=1)
    ray.init(address=found.address, log_to_driver=False)
    try:
        yield found, other
    finally:
        ray.shutdown()
        found.shutdown()


def test_a_lost_node_changes_nothing(cluster, tmp_path, capsys):
    found, other = cluster
    study = Study(
        data=Data(name="digits", train=512, test=100), methods=[Prune(), Dwf(train={"lr": 0.1})],
        compressions=[4, 16], seeds=[0, 1], train=Training(length="12ep", batch=16),
    )  # fmt: skip
    news, begun = [], time.monotonic()

    class Watch:
        def begin(self, rows):
            self.ended_runs = 0

        def news(self, key, what):
            news.append(what["event"])

        def ended(self, row):
            self.ended_runs += 1
            if self.ended_runs == 2:  # in the middle, while the others are under way
                threading.Thread(target=found.remove_node, args=(other, False)).start()

    how = How(engine="ray", workers=2, save_every=0.5, deaths=20)
    with run(study, tmp_path / "ray", how=how, watchers=(Watch(),)) as store:
        assert store.counts() == {"done": 8}, [row.reason for row in store.rows()]
        table = [row.result() for row in store.rows()]
        hosts = {row.provenance["machine"] for row in store.rows()}
    with run(study, tmp_path / "here") as store:
        assert [row.result() for row in store.rows()] == table
    with capsys.disabled():
        print(f"\n8 runs, a node killed in the middle, {news.count('died')} lost and repeated, "
              f"{time.monotonic() - begun:.0f} s; {hosts}")  # fmt: skip


def test_each_task_has_a_card_of_its_own(monkeypatch, tmp_path):
    """Of a node that says it has two."""
    from types import SimpleNamespace

    from secateurs_lab.study.engines.ray import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        artefacts = SimpleNamespace(get=None, fits=None, put=None)
        store = SimpleNamespace(artefacts=artefacts)
        for workers, room, share in ((0, 2, 1.0), (4, 4, 0.5)):
            how = How(engine="ray", workers=workers)
            cluster = Cluster(SimpleNamespace(how=how, store=store, tools=None))
            assert cluster.room == room and cluster.remote._default_options["num_gpus"] == share
            stream = cluster.remote.remote(seen_row, None, {}, 1)
            what, (row, _) = next(ray.get(ready) for ready in stream)
            assert what == "row" and row.seen in ("0", "1")
    finally:
        ray.shutdown()


def seen_row(tools, context):
    from types import SimpleNamespace

    return SimpleNamespace(weights=None, seen=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
