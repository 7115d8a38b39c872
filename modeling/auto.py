"""Auto classes for heads that transformers has none for."""

from collections import OrderedDict

from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES


class AutoModelForSequencePairClassification(_BaseAutoModelClass):
    """`from_config` and `from_pretrained` of the type's ForSequencePairClassification."""

    _model_mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())
