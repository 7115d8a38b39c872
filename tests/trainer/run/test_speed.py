"""The share of a card's peak that a run reaches."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig

from longmix.trainer.models.flops import count_flops
from longmix.trainer.processes.cards import CARDS, card_named, card_of
from longmix.trainer.run import speed

CONFIG = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256)


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(device_name, name):
    card = card_of(device_name)
    assert (None if card is None else card.name) == name


def test_each_card_has_a_name_of_its_own():
    assert [card_named(card.name.lower()) for card in CARDS] == list(CARDS)
    assert card_named("a100") is None


def utilisation(monkeypatch, device_name: str, precision: str = "bf16", size: int = 4) -> speed.Utilisation:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: device_name)
    monkeypatch.setattr(speed, "longest_sample", lambda data: 32)
    prepared = SimpleNamespace(
        precision=precision,
        model_configuration=CONFIG,
        objective=SimpleNamespace(auto_class=AutoModelForMaskedLM),
        data=None,
    )
    return speed.Utilisation(prepared, SimpleNamespace(device=torch.device("cuda"), size=size, is_first=True))


def test_a_run_is_measured_by_all_its_cards(monkeypatch):
    needed = count_flops(CONFIG, AutoModelForMaskedLM, 32).of_training(1e6, 1e5)
    share = utilisation(monkeypatch, "NVIDIA H100 PCIe").share(tokens=1e6, items=1e5, seconds=2)
    assert share == pytest.approx(needed / (2 * 4 * 756e12))
    share = utilisation(monkeypatch, "NVIDIA H100 PCIe", "fp32", size=1).share(tokens=1e6, items=1e5, seconds=2)
    assert share == pytest.approx(needed / (2 * 51e12))


def test_a_run_that_goes_on_is_measured_by_what_it_has_done_since(train, monkeypatch, tmp_path):
    shares = []
    monkeypatch.setattr(speed.Utilisation, "share", lambda self, *passed: shares.append(passed))
    changes = {"log.every_steps": 6, "data.eval": None}
    train(tmp_path / "run", **changes, **{"run.stop_at_step": 5})
    train(tmp_path / "run", **changes)
    train(tmp_path / "last", **{**changes, "log.every_steps": 1})
    (resumed, *_, last) = shares
    assert resumed[:2] == last[:2]


@pytest.mark.parametrize(("name", "precision"), [("NVIDIA GeForce RTX 4090", "bf16"), ("Tesla V100-SXM2-16GB", "bf16")])
def test_where_no_sheet_says_there_is_no_share(monkeypatch, name, precision):
    assert utilisation(monkeypatch, name, precision).share(1e6, 1e5, 2) is None


def test_a_model_that_cannot_be_counted_has_none_and_a_line_says_so(monkeypatch, capsys):
    def refuse(*arguments):
        raise RuntimeError("it looks at its values")

    monkeypatch.setattr(speed, "count_flops", refuse)
    assert utilisation(monkeypatch, "NVIDIA H200").share(1e6, 1e5, 2) is None
    assert "no mfu, for the operations of this model cannot be counted: it looks" in capsys.readouterr().err


def test_the_memory_is_the_most_since_it_was_last_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**29)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    assert speed._peak_memory(torch.device("cpu")) is None and asked == []
    assert speed._peak_memory(torch.device("cuda", 1)) == 1.5
    assert asked == [torch.device("cuda", 1)]
