"""Files of longmix's own are opened without being led to another one, waiting for one, or emptying one."""

import errno
import os
import socket
import stat
import subprocess
import sys
import types

import pytest

from longmix.kernels.common import safe_files

PRECIOUS = b"precious"
OPENERS = {
    "lock": safe_files.open_lock,
    "append": safe_files.open_to_append,
    "change": safe_files.open_to_change,
    "empty": safe_files.open_emptied,
    "read": safe_files.open_to_read,
    "over": lambda path: safe_files.write_over(path, b"x"),
}


def plant(path, kind):
    """Put something at `path` that is no file of longmix's; a link, or other name, is of `path.parent / "canary"`."""
    canary = path.parent / "canary"
    canary.write_bytes(PRECIOUS)
    if kind == "symbolic link":
        path.symlink_to(canary)
    elif kind == "dangling symbolic link":
        path.symlink_to(path.parent / "nowhere")
    elif kind == "hard link":
        os.link(canary, path)
    elif kind == "named pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(path.parent)  # the path of a socket is short
            try:
                listener.bind(path.name)
            finally:
                os.chdir(here)
    else:
        path.mkdir()


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("kind", ["symbolic link", "dangling symbolic link", "named pipe", "socket", "folder"])
def test_what_is_no_file_is_refused_with_what_it_is(tmp_path, opener, kind):
    plant(tmp_path / "name", kind)
    with pytest.raises(
        OSError, match=rf"it is a {kind.removeprefix('dangling ')}, not a file of longmix's: move it aw"
    ):
        OPENERS[opener](tmp_path / "name")
    assert (tmp_path / "canary").read_bytes() == PRECIOUS
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("opener", ["append", "change", "empty", "over"])
def test_a_file_with_another_name_is_not_changed(tmp_path, opener):
    plant(tmp_path / "name", "hard link")
    with pytest.raises(OSError, match=r"it has another name elsewhere \(a hard link\): move it away"):
        OPENERS[opener](tmp_path / "name")
    assert (tmp_path / "canary").read_bytes() == PRECIOUS


def test_a_link_that_appears_between_look_and_opening_is_not_followed(tmp_path, monkeypatch):
    plant(tmp_path / "name", "symbolic link")
    monkeypatch.setattr(safe_files, "_refuse_irregular", lambda path, found: None)
    for opener in ("lock", "append", "change", "empty", "read"):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            OPENERS[opener](tmp_path / "name")


def test_a_file_that_holds_something_is_no_lock(tmp_path):
    (tmp_path / ".lock").write_bytes(PRECIOUS)
    with pytest.raises(OSError, match=r"it holds 8 bytes, so it is no lock of longmix's: move it away"):
        safe_files.open_lock(tmp_path / ".lock")
    assert (tmp_path / ".lock").read_bytes() == PRECIOUS


def test_files_of_our_own_are_opened(tmp_path):
    path = tmp_path / "name"
    with safe_files.open_to_append(path) as file:
        file.write(b"one")
    with safe_files.open_to_change(path) as file:
        assert file.read() == b"one"
    safe_files.write_over(path, b"tw")
    assert path.read_bytes() == b"twe"
    safe_files.write_over(path, b"t", cut=True)
    with safe_files.open_to_read(path) as file:
        assert file.read() == b"t"
    with safe_files.open_emptied(path) as file:
        file.write(b"four")
    assert path.read_bytes() == b"four"


def test_nothing_is_written_below_a_folder_that_is_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        safe_files.write_over(tmp_path / "folder" / "name", b"x")
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["symbolic link", "dangling symbolic link", "hard link", "named pipe", "folder"])
def test_a_temporary_name_that_is_taken_is_left_alone(tmp_path, kind):
    taken = tmp_path / f".name.{os.getpid()}.tmp"
    plant(taken, kind)
    temporary = safe_files.new_beside(tmp_path / "name")
    assert temporary.name == f".name.{os.getpid()}-1.tmp" and temporary.read_bytes() == b""
    assert os.path.lexists(taken) and (tmp_path / "canary").read_bytes() == PRECIOUS
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture(autouse=True)
def no_group_is_known():
    for cached in (safe_files._is_users_own, safe_files._roots):
        cached.cache_clear()
    yield
    for cached in (safe_files._is_users_own, safe_files._roots):
        cached.cache_clear()


def test_a_private_folder_is_made_for_the_user_alone(tmp_path):
    before = os.umask(0)
    try:
        folder = safe_files.private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert folder == tmp_path / "a" / "b"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
    assert safe_files.private_folder(folder / ".." / "b") == folder / ".." / "b"


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o1777])
def test_a_folder_that_others_can_write_in_is_not_private(tmp_path, mode):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b").chmod(mode)
    with pytest.raises(
        safe_files.NotPrivate, match=rf"others can write to .*a/b \(mode {mode:04o}\): chmod go-w /.*b$"
    ):
        safe_files.private_folder(tmp_path / "a" / "b")
    if not mode & stat.S_ISVTX:
        with pytest.raises(safe_files.NotPrivate, match="a/b "):
            safe_files.private_folder(tmp_path / "a" / "b" / "c")
    else:  # as /tmp
        safe_files.private_folder(tmp_path / "a" / "b" / "c")


def test_a_folder_behind_a_link_is_as_private_as_the_way_there(tmp_path):
    (tmp_path / "shared" / "mine").mkdir(parents=True)
    (tmp_path / "link").symlink_to("shared/mine")
    safe_files.private_folder(tmp_path / "link" / "folder")
    assert (tmp_path / "shared" / "mine" / "folder").is_dir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(safe_files.NotPrivate, match=r"others can write to .*shared "):
        safe_files.private_folder(tmp_path / "link" / "folder")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        safe_files.private_folder(tmp_path / "round")


def test_a_folder_of_another_user_is_not_private(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(safe_files.NotPrivate, match=r"belongs to \S+, not to 54321: chown 54321 /"):
        safe_files.private_folder(tmp_path)
    if os.getuid() != 0:
        with pytest.raises(safe_files.NotPrivate, match="not to 54321"):
            safe_files.read_private(tmp_path / "file")


@pytest.mark.parametrize(("mapped", "roots"), [("0 0 4294967295\n", {0}), ("0 1000 1\n", {0, 65534}), (None, {0})])
def test_roots_folders_are_known_in_containers_that_do_not_map_root(tmp_path, monkeypatch, mapped, roots):
    if mapped is not None:
        (tmp_path / "map").write_text(mapped)
    (tmp_path / "unmapped").write_text("65534\n")
    monkeypatch.setattr(safe_files, "_USER_MAP", tmp_path / "map")
    monkeypatch.setattr(safe_files, "_UNMAPPED_USER", tmp_path / "unmapped")
    assert safe_files._roots() == roots


@pytest.mark.parametrize(
    ("name", "members", "is_private"),
    [("me", [], True), ("me", ["me"], True), ("me", ["you"], False), ("us", [], False)],
)
def test_a_group_of_the_users_own_is_the_user(tmp_path, monkeypatch, name, members, is_private):
    group = tmp_path.stat().st_gid
    monkeypatch.setattr(safe_files.pwd, "getpwuid", lambda user: types.SimpleNamespace(pw_name="me", pw_gid=group))
    monkeypatch.setattr(safe_files.grp, "getgrgid", lambda _: types.SimpleNamespace(gr_name=name, gr_mem=members))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o775)
    if is_private:
        assert safe_files.private_folder(tmp_path / "folder")
        return
    with pytest.raises(safe_files.NotPrivate, match=r"\(mode 0775\)"):
        safe_files.private_folder(tmp_path / "folder")


def test_a_file_that_others_can_write_is_not_believed(tmp_path):
    (tmp_path / "file").write_bytes(PRECIOUS)
    (tmp_path / "file").chmod(0o600)
    assert safe_files.read_private(tmp_path / "file") == PRECIOUS
    (tmp_path / "file").chmod(0o602)
    with pytest.raises(safe_files.NotPrivate, match=r"others can write to .*file \(mode 0602\)"):
        safe_files.read_private(tmp_path / "file")


def test_the_helper_needs_no_library():
    code = "import sys, longmix.kernels.common.safe_files; print(sorted({'torch', 'numpy', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_what_is_read_may_be_linked_but_is_a_file_of_bounded_size(tmp_path):
    (tmp_path / "file").write_bytes(PRECIOUS)
    (tmp_path / "link").symlink_to("file")
    assert safe_files.read_input(tmp_path / "link", len(PRECIOUS)) == PRECIOUS
    with pytest.raises(OSError, match="it has more than 7 bytes"):
        safe_files.read_input(tmp_path / "link", len(PRECIOUS) - 1)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**36)
    with pytest.raises(OSError, match="it has more than 1,000 bytes"):
        safe_files.read_input(tmp_path / "sparse", 1000)
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in {"pipe": "named pipe", "socket": "socket", "zero": "device", "folder": "folder"}.items():
        with pytest.raises(OSError, match=f"it is a {kind}, not a file"):
            safe_files.open_input(tmp_path / name)
