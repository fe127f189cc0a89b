"""What the four linear ops share: activation modes, shape checks, and in ``*.hpp`` the unpack and dot loops."""

from __future__ import annotations

from shohin.kernels.linear.checks import ACTIVATIONS, check_activations, check_eps, check_matrix

__all__ = ["ACTIVATIONS", "check_activations", "check_eps", "check_matrix"]
