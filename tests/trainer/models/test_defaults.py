"""The defaults of a model's fields are noted with a run, and those of then hold for it whatever today's are."""

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.trainer.models import defaults
from longmix.trainer.models.defaults import with_defaults
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.models.fields import FOLLOWING, default_fields, earlier_default_fields
from longmix.trainer.models.model_types import config_class
from longmix.trainer.run.folder import as_begun, refuse_changes, write_configuration
from longmix.trainer.settings import reading


@pytest.fixture
def load(tmp_path):
    """load(*changes, model_type="transformer") -> the configuration of a run file that sets little."""

    def make(*changes, model_type="transformer"):
        path = tmp_path / "run.yaml"
        path.write_text(f"run: {{dir: {tmp_path / 'run'}}}\nmodel: {{model_type: {model_type}}}\ndata: {{train: d}}\n")
        return reading.load([str(path)], list(changes), field_mistakes)

    return make


def begin(run, configuration):
    run.mkdir(exist_ok=True)
    write_configuration(run, as_begun(run, configuration))
    return yaml.safe_load((run / "config.yaml").read_text())


def forget(run):
    """Make config.yaml one of a version that noted no defaults."""
    values = yaml.safe_load((run / "config.yaml").read_text())
    del values["model_defaults"]
    (run / "config.yaml").write_text(yaml.safe_dump(values))


@pytest.mark.parametrize("model_type", ["converter", "flt", "paramixer", "s3attention", "transformer", "wavspa"])
def test_noted_are_the_fields_of_the_class_that_nothing_else_decides(model_type):
    fields = config_class(model_type).own_fields()
    assert set(default_fields(model_type)) == set(fields) - set(FOLLOWING)
    for name, value in default_fields(model_type).items():
        assert getattr(config_class(model_type), name) == value, name
    assert earlier_default_fields(model_type) == config_class(model_type).earlier_defaults


def test_a_run_notes_what_its_run_file_does_not_set(load, tmp_path):
    noted = begin(tmp_path / "run", load("model.hidden_size=32"))
    assert noted["model"] == {"model_type": "transformer", "hidden_size": 32}
    assert noted["model_defaults"]["transformer"]["position_embedding_type"] == "rope"
    assert "hidden_size" not in noted["model_defaults"]["transformer"]


def test_a_default_that_changes_later_changes_no_run(load, tmp_path, monkeypatch):
    begin(tmp_path / "run", load())
    today = {**default_fields("transformer"), "hidden_act": "relu", "a_new_field": 1}
    monkeypatch.setattr(defaults, "default_fields", lambda model_type: dict(today))
    monkeypatch.setattr(defaults, "earlier_default_fields", lambda model_type: {"a_new_field": 0})
    for again in (load(), reading.load([str(tmp_path / "run")], [], field_mistakes)):
        refuse_changes(tmp_path / "run", again)
        fields = as_begun(tmp_path / "run", again).model_fields()
        assert (fields["hidden_act"], fields["a_new_field"]) == ("gelu", 0)
    fields = as_begun(tmp_path / "other", load()).model_fields()
    assert (fields["hidden_act"], fields["a_new_field"]) == ("relu", 1)


@pytest.mark.parametrize("changes", [(), ("run.dir=elsewhere",)], ids=["resumed", "copied"])
def test_a_run_of_an_earlier_version_keeps_learned_positions(load, tmp_path, changes):
    run = tmp_path / "run"
    begin(run, load())
    forget(run)
    again = reading.load([str(run)], list(changes), field_mistakes)
    refuse_changes(run, again)
    complete = as_begun(type(run)(again.run.dir), again)
    assert complete.model_fields()["position_embedding_type"] == "learned"
    assert as_begun(run, load()).model_fields()["position_embedding_type"] == "learned"  # its own run file
    begin(run, load())
    assert as_begun(run, load()).model_fields()["position_embedding_type"] == "learned"  # and after that


def test_a_run_of_before_keeps_its_factors(load, tmp_path):
    """Null was noted in place of a number that follows from the length."""
    run, both_ways = tmp_path / "run", "model.symmetric=true"
    begin(run, load(both_ways, model_type="paramixer"))
    values = yaml.safe_load((run / "config.yaml").read_text())
    assert values["model_defaults"]["paramixer"]["factors"] == "fewest"
    values["model_defaults"]["paramixer"]["factors"] = None
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    begun = as_begun(run, reading.load([str(run)], [], field_mistakes))
    new = as_begun(tmp_path / "new", load(both_ways, model_type="paramixer"))
    made = [config_class("paramixer")(**configuration.model_fields()) for configuration in (begun, new)]
    assert [config.factors for config in made] == [9, 5]
    saved = {name: value for name, value in made[0].to_dict().items() if name != "factors"}
    assert config_class("paramixer").from_dict(saved).factors == 9


def test_another_value_of_a_noted_field_is_a_change_of_the_run(load, tmp_path):
    run = tmp_path / "run"
    begin(run, load("model.hidden_size=32"))
    with pytest.raises(UserError, match=r"model\.position_embedding_type was 'rope' and is now 'learned'"):
        refuse_changes(run, load("model.hidden_size=32", "model.position_embedding_type=learned"))
    with pytest.raises(UserError, match=r"model\.hidden_size was 32 and is now 768"):
        refuse_changes(run, load())
    refuse_changes(run, load("model.hidden_size=32", "model.position_embedding_type=rope"))


def test_defaults_of_another_type_and_of_a_checkpoint_are_not_noted(load, tmp_path):
    begin(tmp_path / "run", load())
    copied = reading.load([str(tmp_path / "run")], ["model.model_type=flt", "run.dir=elsewhere"], field_mistakes)
    assert with_defaults(copied).model_fields()["position_embedding_type"] == "learned"
    assert with_defaults(load("model.from=some/checkpoint")).model_defaults == {}
    assert with_defaults(load(model_type="bert")).model_defaults == {}


def test_defaults_that_are_no_map_are_refused(load):
    with pytest.raises(UserError, match="model_defaults has 3 for transformer, but takes a map"):
        load("model_defaults={transformer: 3}")
