"""A real SGLang server for machines without a GPU: its locked environment, stand-in kernels and tiny random models.

What it measures is a rehearsal of the method and never a result: CPU, random weights, kernels in plain torch.
"""

from kit.rehearsal.environment import CpuServer, ensure_environment

__all__ = ["CpuServer", "ensure_environment"]
