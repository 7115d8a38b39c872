"""What layers are told of a batch, and what enters the first of them."""

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recurrent_positions_keep_the_precision_of_their_weights(dtype):
    """torch's autocast has them in fp16 on a GPU, whatever is asked for, without a scale of the loss."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("converter", max_position_embeddings=16, position_embedding_type="gru", **TINY)
    embeddings = AutoModel.from_config(config).embeddings.eval()
    ids = torch.randint(8, (2, 16))
    with torch.autocast("cpu", dtype):
        found = embeddings.add_positions(embeddings.word_embeddings(ids))
    assert found.dtype == torch.float32
    assert torch.equal(found, embeddings.add_positions(embeddings.word_embeddings(ids)))
    halved = embeddings.to(dtype)
    assert halved.add_positions(halved.word_embeddings(ids)).dtype == dtype
