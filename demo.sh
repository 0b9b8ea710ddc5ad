#!/usr/bin/env bash
# Installs the package and lets a small language model write a few words, on the GPU if there is one.
set -euo pipefail
cd "$(dirname "$0")"

if [ -z "${VIRTUAL_ENV-}" ]; then
  [ -e .venv/bin/activate ] || "${PYTHON:-python3}" -m venv .venv
  # shellcheck disable=SC1091
  . .venv/bin/activate
fi
python -m pip install -q --disable-pip-version-check '.[jit,llm]'

pygpukit pull smollm2
pygpukit generate smollm2 "${1:-The quickest way to add two vectors on a GPU is}"
