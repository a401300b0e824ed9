"""Attention kernels, one family a file; attention.py and cache_attention.py in
isojax/models/ use them."""
