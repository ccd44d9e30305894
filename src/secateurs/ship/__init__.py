"""From a sparse model to something smaller and faster, each step checked against the model it came from."""

__all__: list[str] = []
