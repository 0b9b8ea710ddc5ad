#!/usr/bin/env bash
# Builds the package from source and runs its tests.
#
#   ./test.sh        GoogleTest and pytest
#   ./test.sh --all  also what CI checks: format, lint, types, sanitizers, fuzzing, the C++ package
#
# PYGPUKIT_TEST_DEVICE=cuda runs the tests on the GPU (default: cpu, the simulated device). An active
# virtual environment is used, else .venv is made. FUZZ_SECONDS bounds each fuzz target.
set -euo pipefail
cd "$(dirname "$0")"

all=false
case "${1-}" in
  "") ;;
  --all) all=true ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

export PYGPUKIT_TEST_DEVICE=${PYGPUKIT_TEST_DEVICE:-cpu}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# A fresh clone in another folder finds the objects of the last one.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

step() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }
has() { command -v "$1" >/dev/null; }

# GoogleTest on all cores, each process with its share of the tests; a GPU has one at a time.
gtest() {
  local count=1 failed=0 shares=() i
  [ "$PYGPUKIT_TEST_DEVICE" != cpu ] || count=$(nproc)
  for ((i = 0; i < count; ++i)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i "$@" --gtest_brief=1 &
    shares+=($!)
  done
  for i in "${shares[@]}"; do wait "$i" || failed=1; done
  return $failed
}

# -- What the tests need -------------------------------------------------------------------------

# A clang new enough for the code's C++20, and with its sanitizer libraries.
usable_clang() {
  local probe='#if __clang_major__ < 16
#error too old
#endif
int main() {}'
  for clang in "${CLANGXX-}" clang++-{21,20,19,18,17,16} clang++; do
    if has "$clang" && "$clang" -fsanitize=address -x c++ -o /dev/null - <<<"$probe" 2>/dev/null; then
      echo "$clang"
      return
    fi
  done
}

missing_packages() {
  has c++ || has g++ || echo g++
  has ccache || echo ccache
  [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/src/googletest ] || echo libgtest-dev
  if $all && [ -z "$(usable_clang)" ]; then echo clang-19 libclang-rt-19-dev; fi
  if [ -z "${VIRTUAL_ENV-}" ] && [ ! -e .venv ]; then
    "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || echo python3-venv
    "${PYTHON:-python3}" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null ||
      echo python3-dev
  fi
}

packages=$(missing_packages)
if [ -n "$packages" ]; then
  # shellcheck disable=SC2086
  set -- $packages
  if [ "$(id -u)" = 0 ] && has apt-get; then
    step "install $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  elif [ "$*" != ccache ]; then
    echo "Please install (Debian's names): $*" >&2
    exit 1
  fi
fi

step "Python environment"
if [ -z "${VIRTUAL_ENV-}" ]; then
  [ -e .venv/bin/activate ] || "${PYTHON:-python3}" -m venv .venv
  # shellcheck disable=SC1091
  . .venv/bin/activate
fi
pip=(python -m pip install -q)
"${pip[@]}" -U 'pip>=25.1'
groups=(--group build)
if $all; then groups+=(--group lint); fi
"${pip[@]}" "${groups[@]}"
# What the build backend asks for on this machine: cmake, ninja or NVIDIA's compiler where they are missing.
mapfile -t requires < <(python -c '
import sys
sys.path.insert(0, "cmake")
import build_backend
print(*build_backend.get_requires_for_build_wheel(), sep="\n")')
[ -z "${requires[*]}" ] || "${pip[@]}" "${requires[@]}"

# -- Checks of the text --------------------------------------------------------------------------

if $all; then
  step "format and lint"
  find . -path ./build -prune -o -path './.*' -prune -o \
    \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0r clang-format --dry-run -Werror
  ruff check -q .
  ruff format -q --check .
fi

# -- Build once, test from C++ and from Python ---------------------------------------------------
# The wheel is built in the folder of the C++ tests, so that each object is compiled once for both.

step "build and install the package"
if $all; then export PYGPUKIT_WERROR=ON; fi
"${pip[@]}" --no-build-isolation -C build-dir=build/tests -C cmake.define.PYGPUKIT_BUILD_TESTS=ON \
  -C cmake.define.PYGPUKIT_BUILD_BENCHMARKS=ON '.[jit,llm,top,test]'
step "build the C++ tests"
cmake --build build/tests --target pygpukit_tests pygpukit_benchmarks -- --quiet | sed "/no work to do/d"

step "GoogleTest"
gtest build/tests/pygpukit_tests
step "pytest"
python -m pytest

$all || exit 0

step "mypy"
python -m mypy

step "C++ package and example"
cmake --install build/tests --component cpp --prefix build/prefix >/dev/null
cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_PREFIX_PATH="$PWD/build/prefix" >/dev/null
cmake --build build/example -- --quiet
build/example/example

# -- Sanitizers and fuzzing: instrumented builds, by the other compiler --------------------------

step "sanitizers"
cmake -S . -B build/sanitize -G Ninja -DCMAKE_CXX_COMPILER="$(usable_clang)" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DPYGPUKIT_CUDA=OFF -DPYGPUKIT_SANITIZE=address,undefined \
  -DPYGPUKIT_BUILD_TESTS=ON -DPYGPUKIT_BUILD_FUZZERS=ON >/dev/null
cmake --build build/sanitize --target pygpukit_tests pygpukit_fuzzers -- --quiet
PYGPUKIT_TEST_DEVICE=cpu gtest build/sanitize/pygpukit_tests

# What several threads share, under ThreadSanitizer: tests with one of these words in their names, and only the
# files that have such.
step "thread sanitizer"
words='Thread Stream Launcher Trace Tenant Pool Evict Transfer Pinned Schedul Admission Partition'
words="$words Pacing Dispatch Ledger Metrics Observe Meter"
shared=$(printf '*%s*:' $words)
files=$(grep -lE "TEST(_F|_P)?\\(.*($(tr ' ' '|' <<<"$words"))" tests/cpp/*_test.cpp | paste -sd ';')
cmake -S . -B build/tsan -G Ninja -DCMAKE_CXX_COMPILER="$(usable_clang)" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DPYGPUKIT_CUDA=OFF -DPYGPUKIT_SANITIZE=thread -DPYGPUKIT_BUILD_TESTS=ON \
  -DPYGPUKIT_TEST_FILES="$files" >/dev/null
cmake --build build/tsan --target pygpukit_tests -- --quiet
TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp PYGPUKIT_TEST_DEVICE=cpu \
  gtest build/tsan/pygpukit_tests --gtest_filter="$shared"

for fuzzer in build/sanitize/fuzz/*_fuzz; do
  [ -x "$fuzzer" ] || continue
  name=$(basename "$fuzzer")
  step "fuzz $name"
  mkdir -p "build/corpus/$name"
  seeds=tests/fuzz/corpus/$name
  [ -d "$seeds" ] || seeds=
  # shellcheck disable=SC2086
  "$fuzzer" -max_total_time="${FUZZ_SECONDS:-20}" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -artifact_prefix="build/corpus/$name-" -print_final_stats=1 "build/corpus/$name" $seeds \
    >"build/corpus/$name.log" 2>&1 || { tail -40 "build/corpus/$name.log"; exit 1; }
  grep number_of_executed_units "build/corpus/$name.log"
done

step "all checks passed"
