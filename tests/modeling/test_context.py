"""What layers are told of a batch."""

import pytest
import torch
from accelerate.utils import send_to_device
from transformers import AutoConfig, AutoModel

from longmix.modeling import MODEL_TYPES, BatchContext
from longmix.modeling.context import Segments

TINY = {"vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_context_moves_with_the_layers(model_type):
    """As accelerate's hooks move the arguments of a layer that lies on another card."""
    model = AutoModel.from_config(AutoConfig.for_model(model_type, max_position_embeddings=16, **TINY))
    x, mask = torch.randn(2, 16, 32), torch.arange(16) < torch.tensor([[16], [9]])
    documents = Segments(torch.tensor([0, 16, 25, 32], dtype=torch.int32), 16)
    (context,) = model.contexts(BatchContext(mask, embeddings=x, documents=documents))
    assert send_to_device(context, "cpu") is context
    moved = send_to_device(context, "meta")
    assert type(moved.shared) is type(context.shared) and type(moved.documents) is Segments
    tensors = [moved.mask, moved.embeddings, moved.lengths, moved.documents.offsets, *(moved.shared or ())]
    assert all(one.device.type == "meta" for one in tensors if one is not None)
