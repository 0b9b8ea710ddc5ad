import json

from pygpukit import _sharing, doctor
from support import run_python


def test_nothing_is_shared(tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    found = {"mig": _sharing.mig(tmp_path), "mps": _sharing.mps()}
    assert found["mig"] == {"instances": [], "selected": []}
    assert found["mps"]["server"] is False
    assert _sharing.lines(found) == ["no MIG instances", "no MPS server"]


def test_mig_and_mps_are_seen(tmp_path, monkeypatch):
    (tmp_path / "gpu0" / "mig" / "gi3").mkdir(parents=True)
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234, MIG-5678")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
    found = {"mig": _sharing.mig(tmp_path), "mps": _sharing.mps()}
    assert found["mig"] == {"instances": ["gpu0/mig/gi3"], "selected": ["MIG-1234", "MIG-5678"]}
    assert found["mps"]["server"] is True
    first, second = _sharing.lines(found)
    assert first.startswith("1 MIG instances, 2 chosen")
    assert "30 %" in second
    assert str(tmp_path) in second


def test_doctor_reports_them():
    assert set(doctor.report()["sharing"]) == {"mig", "mps"}
    result = run_python("from pygpukit.cli import main\nmain(['doctor', '--json'])")
    assert "mps" in json.loads(result.stdout)["sharing"]
