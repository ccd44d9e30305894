"""What the oldest torch we promise cannot do, by no fault of ours."""

import pytest
import torch

OLD = torch.__version__ < "2.7"

# Its ONNX exporter fails with onnxscripts of today, and with those of its own time on today's onnx.
writes_onnx = pytest.mark.skipif(OLD, reason="torch.onnx of this torch is too old")
