"""Measures the package on the machine at hand, beside its peers.

    python -m pygpukit.benchmark --overhead --decode smollm2 --save results.json
    python -m pygpukit.benchmark --scheduling --save results.json

Every figure is a ratio in one run: to a peer or to raw driver calls, taken in turns with them, with the
error of the result beside it. Absolute times drift with the machine.
"""
