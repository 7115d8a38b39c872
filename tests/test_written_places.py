"""docs/reliability.md lists every place where longmix writes, renames or removes, with what protects users' files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("data_prep", "kernels", "modeling", "trainer")
PAGE = ROOT / "docs" / "reliability.md"
HEADING = "## Where longmix writes"

# Functions and methods that write, rename or remove, by the last part of their name; `open` is known by its mode.
WRITES = {
    *("unlink", "rmdir", "rmtree", "remove", "removedirs", "mkdir", "makedirs", "rename", "renames", "touch", "chmod"),
    *("symlink_to", "hardlink_to", "symlink", "link", "truncate", "ftruncate", "utime", "mkfifo"),
    *("copytree", "copyfile", "copy2", "copymode", "copystat", "move", "make_archive", "unpack_archive", "extractall"),
    *("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"),
    *("write_bytes", "write_text", "write_json", "atomic_path", "write_files", "make_folder"),
    *("savez", "savefig", "to_csv", "to_parquet", "to_json", "write_table", "save_pretrained", "save_file"),
    *("ParquetWriter", "SummaryWriter", "ShardFile", "FileHandler"),
    *("open_lock", "open_emptied", "open_to_append", "open_to_change", "write_over", "new_beside", "private_folder"),
    *("new_folder", "put_in_place", "swap", "remove_made", "remove_files", "save_tokenizer"),
}
# Of these names only the calls through their module: `list.remove`, a model's `save`, `str.replace`.
OF_MODULES = {
    "os.remove",
    "os.replace",
    "torch.save",
    "program.save",
    "np.save",
    "numpy.save",
    "shutil.copy",
    "os.truncate",
}
ONLY_OF_MODULES = {"remove"}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}


def is_write(call):
    """Whether a call is to something that writes, renames or removes."""
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if name in OF_MODULES or (last in WRITES and last not in ONLY_OF_MODULES):
        # A tensor's or a bar's method of that name takes no path, and is none of these.
        return True
    if last == "replace":
        # Path.replace takes one argument, str.replace two.
        return len(call.args) == 1 and not call.keywords
    if name == "os.open":
        return bool(WRITING_FLAGS & {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)})
    if last in ("open", "fdopen"):
        modes = [*call.args[(1 if name in ("open", "os.fdopen") else 0) :][:1]]
        modes += [word.value for word in call.keywords if word.arg == "mode"]
        texts = [node.value for mode in modes for node in ast.walk(mode) if isinstance(node, ast.Constant)]
        return any(isinstance(text, str) and re.fullmatch("[rbt]*[wax+][rwaxbt+]*", text) for text in texts)
    return False


def writers(path):
    """The functions of a file that write: `Class.method`, `function`, "" for the module itself."""
    found = set()

    def visit(node, names):
        for child in ast.iter_child_nodes(node):
            inner = names
            # A function within a function is a part of it.
            if isinstance(child, ast.ClassDef) or (isinstance(child, ast.FunctionDef) and not in_function(node, names)):
                inner = (*names, child)
            if isinstance(child, ast.Call) and is_write(child):
                found.add(".".join(part.name for part in names))
            visit(child, inner)

    def in_function(node, names):
        return any(isinstance(part, ast.FunctionDef) for part in names)

    visit(ast.parse(path.read_text(encoding="utf-8")), ())
    return found


@pytest.fixture(scope="module")
def written():
    """`module:function` of every writing call in the product."""
    places = set()
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            places |= {f"{path.relative_to(ROOT).as_posix()}:{name}" for name in writers(path)}
    return places


@pytest.fixture(scope="module")
def rows():
    """(path, writers, protection) of each row of the page's table."""
    section = PAGE.read_text(encoding="utf-8").partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell):
    """`a/b.py:one`, `:two` -> both with their file."""
    places, file = set(), ""
    for text in re.findall(r"`([^`]+)`", cell):
        file = text.partition(":")[0] or file
        places.add(f"{file}:{text.partition(':')[2]}")
    return places


def test_every_place_stands_in_the_table_and_no_row_names_what_is_not_there(written, rows):
    assert all(len(row) == 3 and all(row) for row in rows), "path, who writes, what protects users' files"
    listed = set().union(*(named(who) for _, who, _ in rows))
    assert not written - listed, "these write, rename or remove, and docs/reliability.md does not say where"
    assert not listed - written, "docs/reliability.md lists these, and they do not write"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("path.replace(target)", True),
        ("text.replace('a', 'b')", False),
        ("open(path, 'ab')", True),
        ("open(path, 'rb')", False),
        ("open(path)", False),
        ("path.open('w')", True),
        ("open(path, mode='x')", True),
        ("os.fdopen(number, 'r+b')", True),
        ("os.open(path, os.O_RDONLY)", False),
        ("os.open(path, os.O_RDWR | os.O_CREAT)", True),
        ("waiting.remove(job)", False),
        ("os.remove(path)", True),
        ("shutil.rmtree(path)", True),
        ("torch.save(value, file)", True),
    ],
)
def test_writing_calls_are_told_from_others(line, expected):
    assert is_write(ast.parse(line).body[0].value) is expected
