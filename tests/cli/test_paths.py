"""`secateurs paths`: norms, mass and dead channels of a checkpoint."""

import json

import pytest
from safetensors.torch import save_file

import secateurs as sc
from secateurs.cli import main


def test_norm_mass_and_dead_channels(tmp_path, capsys):
    model = sc.models.build("lenet-300-100")
    weights = [p for p in model.parameters() if p.ndim == 2]
    weights[0].data[:3] = 0
    file = tmp_path / "net.safetensors"
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        file,
    )
    with pytest.raises(SystemExit) as done:
        main(["paths", str(file), "--arch", "lenet-300-100", "--json"])
    assert done.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["collapsed"] is False and len(report["layers"][0]["constant"]) == 3
    assert (
        report["log2_norm"]["all"] == report["log2_norm"]["inputs"]
        and report["log2_norm"]["biases"] is None
    )
    with pytest.raises(SystemExit):
        main(["paths", str(file), "--arch", "lenet-300-100"])
    assert "path mass" in capsys.readouterr().out
