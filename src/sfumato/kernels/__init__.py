"""Triton kernels, each beside the plain-PyTorch function that defines it."""
