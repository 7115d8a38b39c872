# Part of longmix 0.1.0, longmix.kernels.ops. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""What this model uses of longmix.kernels.ops."""

from .kernels_link_mix_interface import link_mix
