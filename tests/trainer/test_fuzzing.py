"""Run files, manifests and GLUE's tables with anything in them: a mistake of ours that says so, or a valid result.

The same inputs every time. LONGMIX_FUZZ=5000 seeks among so many new ones for each test; what fails is printed as the
smallest input that shows it.
"""

import contextlib
import copy
import json
import os

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.trainer.finetune.readers import read_tsv
from longmix.trainer.finetune.records import open_table
from longmix.trainer.finetune.tasks import TASKS
from longmix.trainer.models.field_check import field_mistakes, quick_field_mistakes
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings import reading

EXAMPLES = int(os.environ.get("LONGMIX_FUZZ", "0"))
# No deadline: it would be a timed assertion. A folder of the test's own may serve all its examples.
fuzzed = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)

numbers = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400, float("nan"), -0.0])
texts = st.text(max_size=12) | st.sampled_from(
    ["", "null", "1e3", "auto", "../x", "a\nb", "\u2028", "[", "{", "*a", "~"]
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


@contextlib.contextmanager
def allowed():
    """What is raised is a UserError, in one line."""
    try:
        yield
    except UserError as error:
        assert str(error).isprintable() and str(error)


def paths_in(tree, prefix=()):
    """Every place in nested maps and lists."""
    yield prefix
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from paths_in(value, (*prefix, key))


def changed(tree, path, value):
    """A copy of `tree` with `value` at `path`."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


RUN = {
    **reading.from_dict(
        {"run": {"dir": "r"}, "model": {"model_type": "transformer"}, "data": {"train": "d"}}, "test"
    ).to_dict(),
    "extends": [],
}
RUN["data"]["train"] = [{"path": "a", "weight": 1.0}]
RUN["checkpoint"]["best"] = {"metric": "loss", "mode": "min"}
RUN["model"]["hidden_size"] = 16


@fuzzed
@given(
    st.lists(st.tuples(st.sampled_from(list(paths_in(RUN))[1:]), values), min_size=1, max_size=3),
    st.booleans(),
)
def test_run_files_with_any_values(tmp_path_factory, changes, as_override):
    tree = RUN
    for path, value in changes:
        with contextlib.suppress(LookupError, TypeError):  # an earlier change has taken the place away
            tree = changed(tree, path, value)
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    with contextlib.suppress(UnicodeEncodeError, yaml.YAMLError):
        file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    with allowed():
        overrides = [f"{'.'.join(map(str, path))}={value}" for path, value in changes] if as_override else []
        found = reading.load([str(file)], overrides, field_mistakes)
        # What is valid comes back as it is.
        file.write_text(reading.dump(found, {}), encoding="utf-8")
        assert repr(reading.load([str(file)], [])) == repr(found)


# Pieces of YAML, so that some of what comes of them can be read.
PIECES = """
run: |model: |data: |extends: |dir: r|train: d|{|}|[|]|,|: |- |? |&a |*a|<<: |null|1e3|0x_|0b|1:60|2024-01-01|=|.nan
!!int |!!python/object/apply:os.getcwd []|!x |>|"|'|#|%YAML 1.2|---|...
"""
pieces = st.sampled_from([*PIECES.replace("\n", "|").split("|"), " ", "  ", "\n", "|\n", "\t", "\r", "\ufeff"])


@fuzzed
@given(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join) | st.binary(max_size=60))
def test_run_files_of_any_text(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    with allowed():
        reading.load([str(file)], [], quick_field_mistakes)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """(a sound data set's folder, its manifest)."""
    folder = tmp_path_factory.mktemp("fuzzed") / "set"
    samples = [{"input_ids": [0, 7, 8, 1], "labels": [-100, 3, 1, -100]}] * 5
    fields = {"split": "train", "split_rule": "test", "vocab_size": 9, "sequence_length": 5, "num_labels": 4}
    fields |= {"pad_token_id": 3, "special_token_ids": [0, 1], "label_names": ["a", "b", "c", "d"]}
    write_dataset(folder, samples, {"input_ids": LIST_INT32, "labels": LIST_INT32}, **fields)
    return folder, json.loads((folder / "manifest.json").read_text())


@fuzzed
@given(st.data())
def test_manifests_with_any_values(dataset, data):
    folder, manifest = dataset
    path = data.draw(st.sampled_from(list(paths_in(manifest))))
    tree = changed(manifest, path, data.draw(values))
    (folder / "manifest.json").write_text(json.dumps(tree), encoding="utf-8")
    with allowed():
        found = ShardedDataset(str(folder))
        found.read(np.arange(len(found)))
        found.manifest.save(folder)
        assert Manifest.load(folder) == found.manifest


@fuzzed
@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode(errors="surrogatepass")))
def test_manifests_of_any_bytes(dataset, text):
    (dataset[0] / "manifest.json").write_bytes(text)
    with allowed():
        ShardedDataset(str(dataset[0]))


FIELDS = [
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\ufeff",
    '"',
    "0",
    "1",
    "entailment",
    "3.8",
    "nan",
    "1e999",
    "-1",
    "\0",
    "\u2028",
    " ",
]


@fuzzed
@given(
    st.sampled_from(sorted(TASKS)),
    st.booleans(),
    st.lists(st.sampled_from(FIELDS) | st.text(max_size=4), max_size=20).map("".join) | st.binary(max_size=30),
    st.booleans(),
)
def test_tables_of_glue_with_anything_below_their_header(tmp_path_factory, name, with_header, body, test):
    task = TASKS[name]
    columns = [*task.text_columns, *([] if test else [task.label_column])]
    if isinstance(body, str):
        body = body.encode(errors="surrogatepass")
    file = tmp_path_factory.getbasetemp() / "fuzzed.tsv"
    file.write_bytes(("\t".join(columns) + "\n").encode() * with_header + body)
    with allowed():
        examples = read_tsv(file, task, test=test)
        assert len(examples) == len(examples.indices) == len(examples.labels or examples.first)
    with allowed():
        assert all(len(row.texts) == 1 for row in open_table(str(file)).rows(columns[-1:]))
