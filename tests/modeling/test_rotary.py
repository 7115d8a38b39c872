"""Rotary positions: their angles, their documents, the models that have them and those that cannot."""

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from longmix.kernels.rotary_heads.portable import rotate
from longmix.modeling.context import BatchContext, Segments
from longmix.modeling.rotary import make_rotation, positions_in_documents


def test_rotations_are_those_of_transformers():
    rate = 1.0 / (500.0 ** (torch.arange(0, 6, 2).float() / 6))
    angles = torch.cat([torch.arange(9)[:, None] * rate] * 2, dim=-1)
    query, key = torch.randn(2, 2, 4, 9, 6)
    expected = apply_rotary_pos_emb(query, key, angles.cos()[None], angles.sin()[None])
    rotation = make_rotation(torch.arange(9), 6, 500.0, torch.float32)
    torch.testing.assert_close((rotate(query, *rotation), rotate(key, *rotation)), expected, rtol=1e-6, atol=1e-6)


def test_products_depend_on_the_distance_alone():
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 30, 8)
    rotation = make_rotation(torch.arange(30), 8, 10000.0, torch.float64)
    products = rotate(query, *rotation) @ rotate(key, *rotation).transpose(-1, -2)
    for distance in (-7, 0, 3):
        diagonal = products[0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0, 0].diagonal(3)[0] != products[0, 0].diagonal(-7)[0]


def test_positions_begin_anew_with_each_document_whatever_its_number():
    documents = torch.tensor([[4, 4, 4, 9, 4, 4, 0]])
    assert positions_in_documents(documents, 7, documents.device).tolist() == [[0, 1, 2, 0, 0, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_are_not_rounded_to_half_precision(dtype):
    features = torch.ones(1, 1, 3000, 4, dtype=dtype)
    exact = rotate(features.double(), *make_rotation(torch.arange(3000), 4, 10000.0, torch.float64))
    found = rotate(features, *make_rotation(torch.arange(3000), 4, 10000.0, dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=8e-3)


def test_a_forward_pass_makes_its_angles_once(make_model, batch, monkeypatch):
    made = []
    monkeypatch.setattr(
        "longmix.modeling.context.make_rotation", lambda *arguments: made.append(1) or make_rotation(*arguments)
    )
    model = make_model("transformer", num_hidden_layers=3)
    input_ids, mask = batch([9, 4], 9)
    model(input_ids=input_ids, attention_mask=mask)
    assert len(made) == 1
    assert not any("rotation" in name or "position" in name for name in model.state_dict())


def test_packed_documents_are_what_they_are_alone(make_model, batch):
    model = make_model("transformer")
    input_ids, _ = batch([12], 12)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    packed = model(input_ids=input_ids, document_ids=documents).last_hidden_state
    for start, end in ((0, 5), (5, 9), (9, 12)):
        alone = model(input_ids=input_ids[:, start:end]).last_hidden_state
        torch.testing.assert_close(packed[:, start:end], alone, rtol=1e-5, atol=1e-5)


def test_word_order_is_seen(make_model, batch):
    input_ids, _ = batch([12], 12)
    for kind, is_seen in (("rope", True), ("none", False)):
        model = make_model("transformer", position_embedding_type=kind)
        forward, backward = (model(input_ids=ids).last_hidden_state for ids in (input_ids, input_ids.flip(1)))
        assert torch.allclose(forward, backward.flip(1), atol=1e-5) is not is_seen


@pytest.mark.parametrize("attention", ["softmax", "windowed"])
def test_attention_among_tokens_of_wavspa_takes_them(attention, make_mixer):
    fields = {"space": "none", "attention": attention, "attention_window": 8, "num_attention_heads": 2}
    mixer = make_mixer("wavspa", **fields, position_embedding_type="rope").double()
    baseline = make_mixer("transformer").double()
    baseline.attention.load_state_dict(mixer.attentions[0].state_dict())
    x = torch.randn(2, 5, 16, dtype=torch.float64)  # the window holds all
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    torch.testing.assert_close(mixer(x, BatchContext(mask)), baseline(x, BatchContext(mask)))


@pytest.mark.parametrize(
    ("model_type", "fields", "because"),
    [
        ("converter", {}, "no queries and keys"),
        ("flt", {}, "its mask"),
        ("paramixer", {}, "no queries and keys"),
        ("s3attention", {}, "smoothed tokens"),
        ("wavspa", {}, "coefficients, which stand for no position"),
        ("wavspa", {"space": "none", "attention": "linear"}, "attention linear compares no queries with keys"),
    ],
)
def test_refused_where_they_mean_nothing(model_type, fields, because, make_config):
    with pytest.raises(ValueError, match=rf"position_embedding_type is 'rope'; allowed: none, .* {because}") as caught:
        make_config(model_type, **fields, position_embedding_type="rope")
    assert "\n" not in str(caught.value)


def test_heads_of_an_odd_number_of_channels_are_refused(make_config):
    with pytest.raises(ValueError, match=r"num_attention_heads is 2; allowed: .* an even number of channels"):
        make_config("transformer", hidden_size=10)
    for theta in (0, 1e-300, float("nan")):  # the second is zero in fp32
        with pytest.raises(ValueError, match=f"rope_theta is {theta}; allowed: at least 1, and finite"):
            make_config("transformer", rope_theta=theta)


def test_a_saved_configuration_says_its_positions_and_an_earlier_one_keeps_its_own(make_config, tmp_path):
    make_config("transformer").save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert '"position_embedding_type": "rope"' in text and '"rope_theta": 10000.0' in text
    assert AutoConfig.from_pretrained(tmp_path).position_embedding_type == "rope"
    (tmp_path / "config.json").write_text(text.replace('"position_embedding_type": "rope",', ""))
    assert AutoConfig.from_pretrained(tmp_path).position_embedding_type == "learned"


def test_segments_and_documents_give_the_same(make_mixer):
    mixer = make_mixer("transformer")
    documents = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])
    x = torch.randn(2, 5, 16)
    segments = Segments(torch.tensor([0, 3, 5, 6, 10], dtype=torch.int32), 4)
    with_segments = mixer(x, BatchContext(None, documents, documents=segments))
    assert torch.equal(with_segments, mixer(x, BatchContext(None, documents)))
