"""Tiny models of every type."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

import longmix.modeling
from longmix.modeling.attention import ATTENTIONS

TINY = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}
EXTRA = {
    "converter": {},
    "flt": {"num_random_features": 12, "num_components": 3, "num_frequencies": 6, "initializer_range": 0.3},
    "paramixer": {"link_hidden_size": 8},
    "s3attention": {"segments": 4, "row_landmarks": 4, "column_landmarks": 3},
    "transformer": {},
    "wavspa": {"linformer_rank": 5, "attention_window": 8},
}
# The spaces of WavSpA, each with the smallest fields that show it.
WAVSPA_SPACES = {
    "none": {},
    "fourier": {},
    "fourier_forward": {},
    "fixed": {"levels": 2},
    "adaptive": {"levels": 2, "wavelet": "db2"},
    "orthogonal": {"levels": 2, "filter_length": 6},
    "lifting": {"levels": 2},
}
# Every way through the code of a mixer; what each must do stands in test_acceptance.py.
VARIANTS = {
    "converter": ("converter", {}),
    "converter-orders": (
        "converter",
        {"orders": 2, "permutations": True, "gibbs_kernel": "wang", "polynomial_order": 3},
    ),
    "converter-paper": ("converter", {"block_style": "paper", "parameter_head": "siren", "num_attention_heads": 1}),
    "converter-siren": ("converter", {"parameter_head": "siren", "gibbs_kernel": "jackson", "polynomial_order": 5}),
    "converter-synvolution": ("converter", {"operator": "synvolution", "permutations": True}),
    "flt": ("flt", {}),
    "flt-basis": (
        "flt",
        {"spectral_kind": "gaussian_basis", "coordinate_dimensions": 3, "frequency_sampling": "learnable_normal"},
    ),
    "flt-causal": ("flt", {"is_causal": True, "mask_bound": 0.1}),
    "flt-coordinates": ("flt", {"spectral_kind": "local", "coordinate_dimensions": 2, "exponents": [2, 1]}),
    "flt-directional": ("flt", {"spectral_kind": "local", "frequency_sampling": "stratified", "directional": True}),
    "flt-kernel": ("flt", {"spectral_kind": "kernel", "position_scale": 0.3, "share_mask": False}),
    "flt-paper": ("flt", {"block_style": "paper", "is_causal": True, "spectral_kind": "local"}),
    "flt-relu": ("flt", {"feature_kind": "relu"}),
    "flt-relu-causal": ("flt", {"feature_kind": "relu", "is_causal": True, "mask_bound": None}),
    "paramixer": ("paramixer", {}),
    "paramixer-causal": ("paramixer", {"is_causal": True, "weights_from": "input"}),
    "paramixer-cdil": ("paramixer", {"protocol": "cdil", "links": 5, "factors": 3}),
    "paramixer-cdil-causal": ("paramixer", {"protocol": "cdil", "links": 4, "is_causal": True}),
    "paramixer-paper": ("paramixer", {"block_style": "paper", "value_hidden_size": 8}),
    "paramixer-symmetric": ("paramixer", {"symmetric": True, "weights_from": "input"}),
    "s3attention": ("s3attention", {}),
    "s3attention-batch": ("s3attention", {"normalization": "batch", "stem_activation": "elu"}),
    "s3attention-odd": ("s3attention", {"n_fft": 1001, "row_landmarks": 1, "column_landmarks": 8, "segments": 16}),
    "s3attention-paper": ("s3attention", {"block_style": "paper"}),
    "transformer": ("transformer", {}),
    "transformer-causal": ("transformer", {"is_causal": True}),
    "transformer-paper": ("transformer", {"block_style": "paper"}),
    **{
        f"wavspa-{space}-{attention}": ("wavspa", {"space": space, "attention": attention, **fields})
        for space, fields in WAVSPA_SPACES.items()
        for attention in ATTENTIONS
    },
    "wavspa": ("wavspa", {}),
    "wavspa-fixed-2d": ("wavspa", {"space": "fixed", "two_dimensional": True}),
    "wavspa-fourier-2d": ("wavspa", {"space": "fourier", "two_dimensional": True}),
    "wavspa-fourier_forward-2d": ("wavspa", {"space": "fourier_forward", "two_dimensional": True}),
    "wavspa-lifting-learned": ("wavspa", {"space": "lifting", "learnable": True, "filter_length": 3}),
    "wavspa-orthogonal-dc": ("wavspa", {"space": "orthogonal", "filter_length": 4, "dc_normalised": True}),
    "wavspa-paper": ("wavspa", {"block_style": "paper"}),
    "wavspa-relu": ("wavspa", {"attention": "performer", "performer_features": "relu"}),
    "wavspa-shared": ("wavspa", {"share_bands": True, "attention": "linformer", "levels": 3}),
    "wavspa-shared-windowed": ("wavspa", {"share_bands": True, "attention": "windowed", "levels": 2}),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    """(model type, fields) of every variant in turn."""
    return VARIANTS[request.param]


@pytest.fixture(scope="session")
def load_oracle():
    """load_oracle(model_type) -> oracle(mixer, x (N, D), ...) of oracles/MODEL_TYPE.py."""

    def load(model_type):
        path = Path(__file__).parent / "oracles" / f"{model_type}.py"
        spec = importlib.util.spec_from_file_location(f"oracle_{model_type}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.oracle

    return load


@pytest.fixture(params=longmix.modeling.MODEL_TYPES)
def model_type(request):
    """Every model type in turn."""
    return request.param


@pytest.fixture
def make_config():
    """make_config(model_type, **fields) -> a tiny configuration."""

    def make(model_type, **fields):
        return AutoConfig.for_model(model_type, **{**TINY, **EXTRA[model_type], **fields})

    return make


@pytest.fixture
def make_model(make_config):
    """make_model(model_type, auto_class=AutoModel, seed=0, **fields) -> a tiny model in evaluation mode.

    Its parameters are large enough for every part of it to show.
    """

    def make(model_type, auto_class=AutoModel, seed=0, **fields):
        torch.manual_seed(seed)
        model = auto_class.from_config(make_config(model_type, **{"initializer_range": 0.3, **fields}))
        return model.eval()

    return make


@pytest.fixture
def make_mixer(make_config):
    """make_mixer(model_type, **fields) -> one mixer in evaluation mode with random biases and gains."""

    def make(model_type, layer_index=0, **fields):
        torch.manual_seed(0)
        config = make_config(model_type, **fields)
        mixer_class = AutoModel._model_mapping[type(config)].mixer_class
        mixer = mixer_class(config, layer_index).eval()
        with torch.no_grad():
            for parameter in mixer.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return mixer

    return make


@pytest.fixture
def batch():
    """batch(lengths, positions) -> input ids and mask, right-padded with ids of real words."""

    def make(lengths, positions, seed=0):
        generator = torch.Generator().manual_seed(seed)
        input_ids = torch.randint(0, TINY["vocab_size"], (len(lengths), positions), generator=generator)
        mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
        return input_ids, mask

    return make
