"""Compiling the C++ kernels: interrupted and simultaneous builds, missing compilers, folders that cannot be written."""

import atexit
import gc
import multiprocessing
import os
import shlex
import shutil
import signal
import stat
import time

import pytest
import torch

from longmix.kernels import build, ops, selection

SOURCE = "answer/cpu.cpp"


def library(part="answer", dtype=torch.float32):
    return build.library(SOURCE, part, dtype)


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch):
    """Every test finds no library loaded and no choice made, and leaves none of its own behind."""

    def forget():
        build.library.cache_clear()
        build._temporary_folder.cache_clear()
        build._tell.cache_clear()
        selection._obstacle.cache_clear()
        selection._warned.clear()

    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    forget()
    yield
    forget()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder of sources with one small file, and an empty cache."""
    (tmp_path / "sources" / "answer").mkdir(parents=True)
    (tmp_path / "sources" / "number.h").write_text("#define NUMBER 42\n")
    (tmp_path / "sources" / SOURCE).write_text('#include "number.h"\nextern "C" int answer() { return NUMBER; }\n')
    monkeypatch.setattr(build, "FOLDER", tmp_path / "sources")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "sources"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that writes its process number to `started` for each build, and hangs half-way while `slow` exists."""
    real = shlex.join(build.find_compiler())
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then cat {tmp_path}/version; exit; fi\n'
        f"if [ -e {tmp_path}/slow ]; then\n"
        f'while [ "$1" != -o ]; do shift; done; echo half a library > "$2"\n'
        f"echo $$ >> {tmp_path}/started; exec sleep 100\nfi\n"
        f'echo $$ >> {tmp_path}/started; sleep 0.2; exec {real} "$@"\n'
    )
    script.chmod(0o755)
    (tmp_path / "version").write_text("1\n")
    monkeypatch.setenv("CXX", str(script))
    return script


def start_build():
    """A process that builds, and ends with the library's answer as its exit code."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(library().answer()))
    process.start()
    return process


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def files(tmp_path):
    return sorted(path.suffix for path in (tmp_path / "cache" / "longmix" / "kernels").iterdir())


def test_a_killed_build_does_not_block_the_next(sources, compiler, tmp_path):
    (tmp_path / "slow").touch()
    process = start_build()
    wait_for(tmp_path / "started")
    process.kill()
    process.join()
    hanging = int((tmp_path / "started").read_text())
    half, lock = files(tmp_path)
    assert half not in (".so", ".sha256") and lock == ".lock"
    (tmp_path / "slow").unlink()
    try:
        assert library().answer() == 42
    finally:
        os.kill(hanging, signal.SIGKILL)  # the compiler outlived the process that started it
    assert files(tmp_path) == [".lock", ".sha256", ".so"]


def test_a_killed_compiler_is_an_error_and_the_next_build_succeeds(sources, compiler, tmp_path, monkeypatch):
    killed = tmp_path / "killed"
    killed.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo 1; exit; fi\nexec {compiler} "$@" & kill -9 $$\n')
    killed.chmod(0o755)
    monkeypatch.setenv("CXX", str(killed))
    with pytest.raises(build.BuildError, match=r"cannot compile cpu.cpp: -9"):
        library()
    monkeypatch.setenv("CXX", str(compiler))
    assert library().answer() == 42


def test_processes_that_build_at_once_compile_once(sources, compiler, tmp_path):
    processes = [start_build() for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [42] * 4
    assert len((tmp_path / "started").read_text().splitlines()) == 1
    assert files(tmp_path) == [".lock", ".sha256", ".so"]


@pytest.mark.parametrize("size", [0, 100, 6000])
def test_a_library_that_was_cut_short_is_built_anew(sources, compiler, tmp_path, size):
    """The system would end the process with a bus error."""
    assert library().answer() == 42
    [path] = (tmp_path / "cache" / "longmix" / "kernels").glob("*.so")
    build.library.cache_clear()
    # Another file: this process goes on with the one that it has loaded.
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:size])
    process = start_build()
    process.join()
    assert process.exitcode == 42 and path.read_bytes() == whole
    assert len((tmp_path / "started").read_text().splitlines()) == 2


def test_a_library_is_found_by_all_it_depends_on(sources, compiler, tmp_path, monkeypatch):
    def key():
        return build._key(sources / SOURCE, build.find_compiler())

    keys = [key()]
    assert key() == keys[0]
    with open(sources / SOURCE, "a") as file:
        file.write("// changed\n")
    keys.append(key())
    (sources / "number.h").write_text("#define NUMBER 43\n")
    keys.append(key())
    (sources / "answer" / "own.h").write_text("// new\n")
    keys.append(key())
    (tmp_path / "version").write_text("2\n")
    keys.append(key())
    monkeypatch.setenv("CXX", str(shutil.copy(compiler, tmp_path / "another")))
    keys.append(key())
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    keys.append(key())
    monkeypatch.setattr(build, "_cpu_features", lambda: "another CPU")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_each_part_and_floating_type_is_compiled_when_it_is_used(sources, compiler, tmp_path):
    with open(sources / SOURCE, "a") as file:
        file.write('extern "C" int size() { return sizeof(REAL); }\n')
    assert library().size() == 4
    assert len((tmp_path / "started").read_text().splitlines()) == 1
    assert library(dtype=torch.float64).size() == 8
    (sources / SOURCE).write_text('#ifdef OTHER\nextern "C" int other() { return 43; }\n#endif\n')
    assert library("other").other() == 43
    assert len((tmp_path / "started").read_text().splitlines()) == 3


def test_small_tensors_are_not_worth_a_thread(sources, monkeypatch):
    (sources / SOURCE).write_text(
        '#include <cstdint>\nextern "C" void longmix_answer(const float*, int64_t* found, int64_t threads)'
        "{ *found = threads; }\n"
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found = torch.zeros(1, dtype=torch.int64)
    answer = build.Function(SOURCE, "answer", (build.REALS, build.INTEGERS))
    threads = []
    for elements in (0, 1, 99_998, 99_999, 149_999, 1_000_000):
        answer(torch.empty(elements), found)
        threads.append(found.item())
    assert threads == [1, 1, 1, 2, 3, 3]


def test_an_error_of_the_compiler_is_told_in_one_line(sources, tmp_path):
    (sources / SOURCE).write_text("int answer() { return nothing; }\n")
    with pytest.raises(build.BuildError, match=r"cannot compile cpu.cpp: .*nothing.* was not declared") as caught:
        library()
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == [".lock"]


def test_a_library_that_cannot_be_loaded_is_an_error(sources, tmp_path, monkeypatch):
    script = tmp_path / "no-compiler"
    script.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo "not a library" > "$2"; shift; done\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(build.BuildError, match=r"the library of answer/cpu.cpp cannot be kept or loaded: "):
        library()


def test_a_compiler_of_c_is_named(sources, monkeypatch, require_or_skip):
    if shutil.which("gcc") is None:
        require_or_skip("compiler", "there is no gcc")
    # Not a symbol of libstdc++: a package that another test has imported may have loaded that for the whole process.
    (sources / SOURCE).write_text('int missing(int);\nextern "C" int answer() { return missing(1); }\n')
    monkeypatch.setenv("CXX", "gcc")
    with pytest.raises(build.BuildError, match=r"undefined symbol: _Z7missingi \(\S+gcc is no compiler of C\+\+\?\)"):
        library()


def test_a_compiler_that_hangs_is_stopped(sources, compiler, tmp_path, monkeypatch):
    (tmp_path / "slow").touch()
    monkeypatch.setattr(build, "LONGEST_SECONDS", 1)
    with pytest.raises(build.BuildError, match=r"compiler has not ended after 1 seconds and was stopped"):
        library()
    wait_for(tmp_path / "started")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
    compiler.write_text("#!/bin/sh\nexec sleep 100\n")  # before it says its version
    with pytest.raises(build.BuildError, match=r"compiler has not ended after 1 seconds"):
        library()


def test_a_compiler_may_be_a_command_with_arguments(sources, compiler, tmp_path, monkeypatch):
    launcher = tmp_path / "a launcher"
    launcher.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/launched\nexec "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{launcher}' {compiler} -O0")
    assert library().answer() == 42
    assert set((tmp_path / "launched").read_text().splitlines()) == {f"{compiler} -O0"}
    monkeypatch.setenv("CXX", "'unfinished")
    with pytest.raises(build.BuildError, match=r"CXX is .*unfinished"):
        build.find_compiler()
    monkeypatch.setenv("CXX", " ")
    assert shutil.which(build.find_compiler()[0])


def test_a_derivative_that_cannot_be_built_is_told_with_the_remedy(sources):
    (sources / SOURCE).write_text("nonsense\n")
    with pytest.raises(RuntimeError, match=r"cannot compile cpu.cpp: .*; LONGMIX_KERNELS=portable runs plain PyTorch"):
        build.Function(SOURCE, "backward", (build.REALS,))(torch.zeros(1))


@pytest.fixture
def planted(sources, tmp_path):
    """The cache, with a library in it that answers 43, where one was compiled that answers 42."""

    def built():
        process = start_build()
        process.join()
        folder = tmp_path / "cache" / "longmix" / "kernels"
        return process.exitcode, {path.suffix: path for path in sorted(folder.iterdir(), key=os.path.getmtime)}

    answer, mine = built()
    (sources / "number.h").write_text("#define NUMBER 43\n")
    other, theirs = built()
    assert (answer, other) == (42, 43) and mine[".so"] != theirs[".so"]
    for suffix in (".so", ".sha256"):
        os.replace(theirs[suffix], mine[suffix])
    (sources / "number.h").write_text("#define NUMBER 42\n")
    assert built()[0] == 43
    return mine[".so"]


@pytest.mark.parametrize(
    "which", ["kernels", *(pytest.param(name, marks=pytest.mark.full) for name in ("longmix", "cache"))]
)
def test_libraries_in_a_folder_of_others_are_not_run(planted, tmp_path, monkeypatch, capfd, which):
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "cache" / {"cache": "", "longmix": "longmix", "kernels": "longmix/kernels"}[which]
    folder.chmod(0o777)
    monkeypatch.delenv(build.TOLD, raising=False)
    monkeypatch.setenv("RANK", "1")  # a run tells it once
    assert library().answer() == 42 and capfd.readouterr().err == ""
    build._tell.cache_clear()
    build.library.cache_clear()
    monkeypatch.delenv(build.TOLD)
    monkeypatch.setenv("RANK", "0")
    assert library().answer() == 42 and library(dtype=torch.float64).answer() == 42
    build._tell.cache_clear()  # as in a process that this one starts
    build.library.cache_clear()
    assert library().answer() == 42
    assert capfd.readouterr().err == (
        f"longmix: every process compiles and proves its kernels anew, for others can write to {folder} (mode 0777): "
        f"chmod go-w {folder}, or let XDG_CACHE_HOME name a folder that is yours alone\n"
    )
    assert planted.exists() and stat.S_IMODE(folder.stat().st_mode) == 0o777


@pytest.mark.full
def test_libraries_that_others_can_change_or_link_to_are_built_anew(planted, tmp_path):
    for path in (planted, planted.with_suffix(".sha256")):
        before = path.read_bytes()
        path.chmod(0o706)
        process = start_build()
        process.join()
        assert process.exitcode == 42 and stat.S_IMODE(path.stat().st_mode) & 0o022 == 0
        (tmp_path / "elsewhere").write_bytes(before)
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")
        process = start_build()
        process.join()
        assert process.exitcode == 42 and not path.is_symlink()
        assert (tmp_path / "elsewhere").read_bytes() == before


def test_a_lock_that_is_a_link_is_not_followed(sources, tmp_path):
    assert library().answer() == 42
    build.library.cache_clear()
    folder = tmp_path / "cache" / "longmix" / "kernels"
    [lock] = folder.glob("*.lock")
    lock.unlink()
    lock.symlink_to(tmp_path / "nowhere")
    next(folder.glob("*.sha256")).unlink()
    with pytest.raises(build.BuildError, match=r"it is a symbolic link, not a file of longmix's: move it away"):
        library()
    assert not (tmp_path / "nowhere").exists()


def test_what_is_kept_is_the_users_alone_whatever_the_umask(sources, tmp_path):
    before = os.umask(0)
    try:
        assert library().answer() == 42
    finally:
        os.umask(before)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").rglob("*") if path.suffix != ".lock"
    }
    assert len(modes) == 4 and not any(mode & 0o022 for mode in modes.values()), modes


def test_a_user_without_a_home_has_a_private_folder(sources, monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(build.Path, "home", no_home)
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert library().answer() == 42
    assert len(list(tmp_path.glob("longmix-kernels-*/*.so"))) == 1


@pytest.mark.parametrize("folder", ["/dev/null", "/proc/none"])
def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_folder(folder, sources, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert library().answer() == 42
    assert len(list(tmp_path.glob("longmix-kernels-*/*.so"))) == 1


def test_a_private_folder_outlives_a_forked_child(sources, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    library()
    child = os.fork()
    if child == 0:
        # As in tests/trainer/checkpoints/test_saving.py: garbage of other tests stays.
        gc.freeze()
        try:
            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob("longmix-kernels-*/*.so"))) == 1


def test_without_a_compiler_plain_pytorch_runs_with_one_warning(monkeypatch):
    value, weights, offsets = torch.randn(1, 5, 2), torch.randn(1, 5, 2, 3), torch.tensor([[0, 1, 2], [0, 1, 3]])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning) as caught:
        results = [ops.link_mix(value, weights, offsets) for _ in range(3)]
        ops.wavelet_analysis(value, torch.randn(4), 1)  # another operation, for the same reason
    assert [str(warning.message) for warning in caught] == [
        "no C++ compiler (no-such-compiler) on PATH; plain PyTorch runs in place of the C++ kernels"
    ]
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    assert torch.equal(results[0], ops.link_mix(value, weights, offsets))
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    with pytest.raises(ValueError, match=r"is 'cpu', but link_mix cannot run so: no C\+\+ compiler"):
        ops.link_mix(value, weights, offsets)
