"""The PEP 517 build backend: scikit-build-core, plus NVIDIA's compiler wheels where no nvcc is found.

Who has the CUDA toolkit builds with it; who has only pip builds all the same.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403  (the other hooks, unchanged)

Settings = dict[str, Any] | None

# One minor series, so that the compiler, its headers and its PTX version belong together.
_NVCC_WHEELS = [
    f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")
]


def _setting(name: str, settings: Settings) -> str:
    """`-C cmake.define.NAME=...` if given, else the environment variable NAME."""
    return str((settings or {}).get(f"cmake.define.{name}") or os.environ.get(name, ""))


def _nvcc_wheels(settings: Settings) -> list[str]:
    """What to install for nvcc; the places looked at are those of cmake/Nvcc.cmake."""
    if _setting("PYGPUKIT_CUDA", settings).upper() in ("0", "OFF", "NO", "FALSE", "N"):
        return []
    if _setting("PYGPUKIT_NVCC", settings) or shutil.which("nvcc"):
        return []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and os.access(os.path.join(root, "bin", "nvcc"), os.X_OK):
            return []
    return _NVCC_WHEELS


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*_build.get_requires_for_build_wheel(config_settings), *_nvcc_wheels(config_settings)]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*_build.get_requires_for_build_editable(config_settings), *_nvcc_wheels(config_settings)]
