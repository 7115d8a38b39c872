"""Attention from non-negative features as an operator of torch, computed by cpu.py or gpu.py."""

from ..attention.operator import register

linear_attention = register("linear_attention")
