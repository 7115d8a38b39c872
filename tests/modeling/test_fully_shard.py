"""torch's FSDP around our models: two ranks with half a batch each learn what one process learns of the whole."""

import pytest

BEFORE = """
import copy
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from longmix.modeling import MODEL_TYPES, model_class
small = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
torch.manual_seed(0)
ids, labels = torch.randint(5, 60, (4, 9)), torch.randint(5, 60, (4, 9))
mask = torch.arange(9) < torch.tensor([9, 4, 7, 9])[:, None]
labels[~mask] = -100
"""
ON_EACH = """
mesh = init_device_mesh("cpu", (2,))
own = slice(2 * rank, 2 * rank + 2)


def logits_after_steps(model, rows, factor):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)  # to AdamW the scale of gradients is nothing
    for _ in range(3):
        loss = model(input_ids=ids[rows], attention_mask=mask[rows], labels=labels[rows],
                     num_items_in_batch=mask.sum()).loss
        (factor * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()(input_ids=ids, attention_mask=mask).logits[mask].detach()


for model_type in MODEL_TYPES:
    # The auxiliary loss of the dirichlet kernel reads parameters outside of their layers.
    fields = {"gibbs_kernel": "jackson"} if model_type == "converter" else {}
    torch.manual_seed(1)
    whole = model_class(model_type, "ForMaskedLM")(model_class(model_type, "Config")(**small, **fields))
    shared = copy.deepcopy(whole)
    for layer in shared.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(shared, mesh=mesh)
    # The ranks' gradients are averaged.
    found, expected = logits_after_steps(shared, own, 2), logits_after_steps(whole, slice(0, 4), 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=lambda text: f"{model_type}: {text}")
"""


@pytest.mark.slow
@pytest.mark.full
def test_two_ranks_of_fsdp_learn_what_one_process_learns(two_ranks):
    two_ranks(BEFORE, ON_EACH)
