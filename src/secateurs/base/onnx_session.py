"""ONNX files in onnxruntime: exported models, and networks of others."""

from pathlib import Path
from typing import Any

import torch

from secateurs.errors import ShipError


def session_of(part: Path) -> Any:
    """An ONNX file in onnxruntime, on as many threads as torch has, which sleep when idle."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    # Spinning threads would take CPU time from everything else in this process.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(part), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(f"onnxruntime cannot run this file: {text}") from error
