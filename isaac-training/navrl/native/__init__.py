"""Compiled Warp kernels: fast launches, split across CPU cores."""
