"""Attention from non-negative features in C++ (cpu.cpp)."""

from ..attention.cpu import AttentionLibrary

_library = AttentionLibrary("linear_attention")
load, forward, backward = _library.load, _library.forward, _library.backward
