"""Ranges for a profiler: a library takes NVTX's place as a tool's does, and writes what it is told."""

import os
import shutil
import subprocess

import pytest

from support import run_python

COMPILER = shutil.which("cc") or shutil.which("gcc")

# The tool's side of the interface: it asks for the domain functions' slots and fills them.
TOOL = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct attributes { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color;
                    int32_t payload_type, reserved; uint64_t payload; int32_t message_type;
                    const char* message; };
struct callbacks { size_t size; int (*module)(int, void (****)(void), unsigned*); };
struct versions { size_t size; uint32_t version, reserved; void (*set)(uint32_t); };

static FILE* out;
static int depth;
static void* create(const char* name) { fprintf(out, "domain %s\n", name); return &depth; }
static int push(void* domain, const struct attributes* a) {
    fprintf(out, "%d %s %d %d\n", depth, a->message, a->version, a->size == sizeof *a && domain == &depth);
    return depth++;
}
static int pop(void* domain) { fflush(out); return domain == &depth ? --depth : -1; }

int InitializeInjectionNvtx2(const void* (*table)(uint32_t)) {
    const struct callbacks* calls = table(1);
    const struct versions* version = table(3);
    void (***slots)(void);
    unsigned size = 0;
    if (getenv("TOOL_REFUSES") || !calls || calls->size != sizeof *calls || table(99)) return 0;
    if (!version || version->version != 3) return 0;
    if (calls->module(0, &slots, &size) || calls->module(7, &slots, &size)) return 0;
    if (!calls->module(1, &slots, &size) || size != 16 || slots[16] || slots[0]) return 0;
    if (!calls->module(5, &slots, &size) || size != 16) return 0;
    version->set(2);
    out = fopen(getenv("TOOL_OUTPUT"), "w");
    *slots[12] = (void (*)(void))create;
    *slots[4] = (void (*)(void))push;
    *slots[5] = (void (*)(void))pop;
    return 1;
}
"""

PROGRAM = "import pygpukit as gp; x = gp.ones(8); y = x + x; gp.synchronize()"


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("tool")
    (folder / "tool.c").write_text(TOOL)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "tool.so", folder / "tool.c"], check=True)
    return folder / "tool.so"


def test_each_span_is_a_range(tool, tmp_path):
    done = run_python(PROGRAM, NVTX_INJECTION64_PATH=str(tool), TOOL_OUTPUT=str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == "domain pygpukit"
    assert [line.split()[0] for line in lines[1:]] == ["0"] * (len(lines) - 1)  # each was closed
    assert all(line.endswith(" 3 1") for line in lines[1:])
    assert "Device.synchronize" in lines[-1]
    assert len(lines) >= 4


@pytest.mark.parametrize("path", ["tool.so", "/nowhere/tool.so", "refuses", "no_tool"])
def test_what_is_no_tool_is_a_warning(tool, tmp_path, path):
    chosen = {"refuses": str(tool), "no_tool": os.path.realpath("/proc/self/exe")}.get(path, path)
    refuses = "1" if path == "refuses" else None
    done = run_python(
        PROGRAM,
        NVTX_INJECTION64_PATH=chosen,
        TOOL_REFUSES=refuses,
        TOOL_OUTPUT=str(tmp_path / "out"),
    )
    assert done.returncode == 0
    assert "RuntimeWarning: NVTX_INJECTION64_PATH" in done.stderr
