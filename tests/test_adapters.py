"""The lazy names of the package of adapters."""

import pytest

from secateurs import adapters


def test_a_missing_name_is_no_import_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = adapters.nonsense
