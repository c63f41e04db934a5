"""Triton kernels of one layer's prefill and decode, KV packing and quantising, with float64 references."""
