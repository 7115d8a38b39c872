"""The fields of a model type, with and without its class."""

import subprocess
import sys

import pytest

from longmix.modeling import MODEL_TYPES, model_class
from longmix.trainer.models.fields import model_fields
from longmix.trainer.models.model_types import field_names


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_sources_tell_the_fields_of_the_class(model_type):
    config_class = model_class(model_type, "Config")
    found = model_fields(model_type)
    assert found.class_name == config_class.__name__
    assert found.names == field_names(config_class)
    assert {"hidden_size", "problem_type"} < set(found.names) and "not_causal_because" not in found.names


@pytest.mark.parametrize("model_type", ["bert", "attention", "../modeling/flt", "", None, ["flt"], {}, 3])
def test_other_types_are_left_to_transformers(model_type):
    assert model_fields(model_type) is None


def test_nothing_heavy_is_imported():
    code = (
        "import sys\n"
        "from longmix.trainer.models.fields import model_fields\n"
        "assert 'space' in model_fields('wavspa').names\n"
        "heavy = {'torch', 'transformers', 'numpy', 'longmix.modeling'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
