import pytest

from secateurs.ship.fast import accelerated


@pytest.fixture(autouse=True)
def without_onnxruntime(request, monkeypatch):
    """Only what is about it meets the rival from elsewhere, which takes seconds to write."""
    if "with_onnxruntime" not in request.keywords:
        monkeypatch.setattr(accelerated, "by_onnxruntime", lambda *_: {})
