"""How a GPU is divided by others than this library: MIG and MPS. Looks only; changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
_MPS_PIPES = "/tmp/nvidia-mps"  # where CUDA looks, if CUDA_MPS_PIPE_DIRECTORY does not say otherwise


def mig(capabilities: Path = _CAPABILITIES) -> dict[str, Any]:
    """`instances`: the GPU instances that the kernel driver shows; `selected`: those this process may see."""
    instances = sorted(str(path.relative_to(capabilities)) for path in capabilities.glob("gpu*/mig/gi*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    selected = [each.strip() for each in chosen.split(",") if each.strip().startswith("MIG-")]
    return {"instances": instances, "selected": selected}


def mps() -> dict[str, Any]:
    """`server`: whether a control daemon is here; `active_thread_percentage`: what a client is limited to."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "") or _MPS_PIPES
    return {
        "pipe_directory": pipes,
        "server": Path(pipes, "control").exists(),
        "active_thread_percentage": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    instances, selected = found["mig"]["instances"], found["mig"]["selected"]
    text = "no MIG instances"
    if instances or selected:
        text = f"{len(instances)} MIG instances, {len(selected)} chosen by CUDA_VISIBLE_DEVICES"
    server = found["mps"]["server"]
    limit = found["mps"]["active_thread_percentage"]
    limited = f", limited to {limit} % of the SMs" if limit else ""
    return [
        text,
        f"MPS server at {found['mps']['pipe_directory']}{limited}" if server else f"no MPS server{limited}",
    ]
