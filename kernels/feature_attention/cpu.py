"""Attention from log-features in C++ (cpu.cpp)."""

from ..attention.cpu import AttentionLibrary

_library = AttentionLibrary("feature_attention")
load, forward, backward = _library.load, _library.forward, _library.backward
