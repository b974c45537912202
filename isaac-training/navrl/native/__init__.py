"""Compiled Warp kernels, called fast and shared out over the cores."""
