"""examples/chains_in_arviz.py reads a toy run; a stand-in takes the place of ArviZ."""

import json
import runpy
import sys
import types

from tests.conftest import REPOSITORY

import numpy as np
import pytest

EXAMPLE = str(REPOSITORY / "examples" / "chains_in_arviz.py")


@pytest.fixture
def run(evaluated):
    return evaluated / "default" / "HMC-MNIST-quick"


def test_quantities_and_weights_by_chain(run):
    variables, names = runpy.run_path(EXAMPLE)["read_chains"](run, 3)
    samples = np.load(run / "samples.npy")
    first, _, last = names["single_weights"]
    assert (first, last) == ("0", str(samples.shape[1] - 1))
    assert np.array_equal(variables["single_weights"][1, :, 0], samples[8:, 0])
    measured = json.loads((run / "diagnostics.json").read_text())["quantities"]
    for group, values in variables.items():
        assert values.shape == (2, 8, len(names[group]))
    for name in ("test_log_likelihood", "probability/526", "invariants/bias of class 3"):
        group, _, entry = name.partition("/")
        values = variables[group][:, :, names[group].index(entry or group)]
        assert values.mean() == pytest.approx(measured[name]["mean"])


def test_arviz_gets_them(run, monkeypatch, capsys):
    given = {}

    class Chains:
        def to_netcdf(self, path):
            given["path"] = path

    class Summary:
        def to_string(self):
            return "the summary"

    arviz = types.ModuleType("arviz")
    arviz.from_dict = lambda **named: given.update(named) or Chains()
    arviz.summary = lambda chains, kind: Summary()
    monkeypatch.setitem(sys.modules, "arviz", arviz)
    monkeypatch.setattr(sys, "argv", [EXAMPLE, str(run), "--out", "chains.nc"])
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert given["path"] == "chains.nc"
    assert given["dims"]["probability"] == ["probability_of"]
    assert len(given["coords"]["probability_of"]) == given["posterior"]["probability"].shape[2]
    assert "the summary" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["arviz", "run"])
def test_what_is_missing_is_said(missing, run, monkeypatch, capsys, tmp_path):
    module = None if missing == "arviz" else types.ModuleType("arviz")
    monkeypatch.setitem(sys.modules, "arviz", module)
    monkeypatch.setattr(sys, "argv", [EXAMPLE, str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(EXAMPLE, run_name="__main__")
    said = f"{ended.value.code} {capsys.readouterr().err}"
    assert ("pip install" if missing == "arviz" else "is no run of HMC") in said
