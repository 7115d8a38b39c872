"""Attention from log-features as an operator of torch, computed by cpu.py or gpu.py."""

from ..attention.operator import register

feature_attention = register("feature_attention")
