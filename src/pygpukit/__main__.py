"""`python -m pygpukit`."""

import sys

from .cli import main

sys.exit(main())
