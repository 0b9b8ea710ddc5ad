#!/usr/bin/env bash
# Installs the package and lets a small language model write a few words, on the GPU if there is one.
set -euo pipefail
cd "$(dirname "$0")"

if [ -z "${VIRTUAL_ENV-}" ]; then
  [ -e .venv/bin/activate ] || "${PYTHON:-python3}" -m venv .venv
  # shellcheck disable=SC1091
  . .venv/bin/activate
fi
# What this machine runs and nothing else: code for every GPU takes several times as long to build.
if [ -z "${PYGPUKIT_CUDA-}${PYGPUKIT_CUDA_ARCHS-}" ]; then
  if nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -Eq '^([89]|1[0-9])\.'; then
    export PYGPUKIT_CUDA_ARCHS=native
  else
    export PYGPUKIT_CUDA=0
  fi
fi
echo 'Building the package from source: several minutes.'
python -m pip install -q --disable-pip-version-check '.[jit,llm]'

pygpukit pull smollm2
pygpukit generate smollm2 "${1:-The quickest way to add two vectors on a GPU is}"
