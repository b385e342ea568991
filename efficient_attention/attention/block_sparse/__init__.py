"""Kernels of block-sparse attention for NVIDIA Hopper GPUs; the backend `mosaic` and LSH attention use them."""
