"""Where the NVIDIA wheels may be: the core looks for libraries there when one is needed."""

from __future__ import annotations

import os
import sys

from . import _native


def _site_packages() -> list[str]:
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [beside, *sys.path]
    trusted = [
        path for path in folders if os.path.isabs(path) and path.endswith(("site-packages", "dist-packages"))
    ]
    return list(dict.fromkeys(trusted))


_native._set_library_folders(_site_packages())
