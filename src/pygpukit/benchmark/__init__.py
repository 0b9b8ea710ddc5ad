"""Measures the package on the machine at hand, beside its peers.

    python -m pygpukit.benchmark --quick
    python -m pygpukit.benchmark --gemm --dtypes bf16,fp8 --sizes 4096,8192 --save results.json
    python -m pygpukit.benchmark --all --compare results.json --fail-on-regression
    python -m pygpukit.benchmark --decode smollm2 --scheduling

Every figure is a ratio in one run: to peers, taken in turns with them, and to a limit of the machine that
the same run measured, with the error of the result beside it. Absolute times drift with the machine.
"""
