"""Variables of the environment, and the machine around the command."""

import os
import shutil

from .. import mutations, results
from ..attack import Attack, Workshop

NUMBERS = ("x", "-1", "", "5", "1.5", "99999999999999999999", " 0", "\u0661", "0x0", "2147483648", "\x1b[31m")
# A launcher that has gone, a first rank that does not answer.
FAULTS = r"longmix: .*(LONGMIX_LAUNCHER|launcher|MASTER_ADDR|MASTER_PORT|another rank)"
WORKER = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    shop.take("data", "run.yaml", "run")
    kind = draw.random()
    if kind < 0.04:
        # A first rank that nobody can reach.
        address = draw.choice(("nowhere.invalid", "", "a b", "\x1b[31m", "x" * 300))
        values = {**WORKER, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": address}
    elif kind < 0.45:
        values = {**WORKER, draw.choice(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")): draw.choice(NUMBERS)}
        for name in list(values):
            if draw.random() < 0.15:
                del values[name]
        # A world of several waits for ranks that never come: as it should.
        if values.get("WORLD_SIZE") in ("5", "1.5") and values.get("RANK", "0") == "0":
            values["RANK"] = "7"
    elif kind < 0.55:
        values = {"LONGMIX_LAUNCHER": draw.choice(("abc", "", "-1", "0", "1", "9" * 30, "\u0661"))}
    elif kind < 0.7:
        values = {
            draw.choice(
                ("OMP_NUM_THREADS", "LONGMIX_KERNELS", "CXX", "CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE")
            ): draw.choice((*NUMBERS, "auto", "cpu", "triton"))
        }
    elif kind < 0.8:
        values = {
            draw.choice(("HOME", "XDG_CACHE_HOME", "TMPDIR")): draw.choice(
                ("/dev/null", "", "/proc/nothing/x", "mine/precious.txt", "a" * 300, "\x1b[31m")
            )
        }
    elif kind < 0.9:
        values = {
            draw.choice(
                (
                    "LANG",
                    "LC_ALL",
                    "PYTHONIOENCODING",
                    "COLUMNS",
                    "TERM",
                    "PYTHONUTF8",
                    "TZ",
                    "HF_HUB_OFFLINE",
                    "SLURM_JOB_ID",
                    "SLURM_PROCID",
                )
            ): draw.choice(("C", "x", "-1", "latin-1", "99999999999", "ascii", "0"))
        }
    else:
        return _around(shop)
    what = ", ".join(f"{name}={value!a:.40}" for name, value in values.items()) or "nothing"
    attack = user(shop, what, {name: value for name, value in values.items() if "\0" not in value})
    if values.keys() & {"HOME", "XDG_CACHE_HOME", "TMPDIR"}:
        # The cache, and what is temporary, are where they were asked for.
        attack.writes += ("*",)
    return attack


def user(shop: Workshop, what: str, environment: dict) -> Attack:
    verb = shop.draw.choice(("train", "train", "train", "check", "inspect", "evaluate", "doctor"))
    if verb == "train":
        check = results.trained("fresh", "run")
        argv = ["train", "run.yaml", "run.dir=fresh"]
        return Attack(argv, what, check, ("fresh",), (1,), FAULTS, environment)
    if verb == "check":
        # The check of a worker other than the first says nothing.
        pattern = "this run file is valid\n$" if environment.get("RANK", "0") == "0" else ""
        return Attack(["train", "run.yaml", "--check"], what, results.says(pattern), environment=environment)
    if verb == "inspect":
        return Attack(
            ["inspect-order", "run.yaml", "--step", "2"], what, results.printed("order.txt"), environment=environment
        )
    if verb == "evaluate":
        return Attack(
            ["evaluate", "run/model", "--data", "data/validation"],
            what,
            results.printed("evaluated.txt"),
            environment=environment,
        )
    if not (shop.home / ".cache").exists():
        # It looks at compiled kernels, and compiles those that are not there.
        shutil.copytree(shop.sound / "home" / ".cache", shop.home / ".cache")
    return Attack(["doctor"], what, results.says("nothing is wrong\n$"), (), (1,), "to mend|wrong", environment)


def _around(shop: Workshop) -> Attack:
    """The cache of shards and kernels, and the folder of temporary files, are not what they should be."""
    draw = shop.draw
    cache = shop.home / ".cache"
    kind = draw.choice(("file", "longmix", "lock", "pipe"))
    if kind == "file":
        cache.write_text("mine")
    else:
        cache.mkdir()
        place = cache / "longmix"
        if kind == "longmix":
            # A link of the user's leads where the cache is to be.
            mutations.something_else(draw, place, shop.canaries)
        else:
            place.mkdir()
            path = place / draw.choice((".lock", "kernels", "shards"))
            if kind == "lock":
                path.symlink_to(shop.canaries / "precious.txt")
            else:
                os.mkfifo(path)
    attack = user(shop, f"the cache: {kind}", {})
    attack.writes += ("**",) if kind == "longmix" else ()
    # As shards from elsewhere, they go through the cache.
    if attack.argv[0] in ("train", "inspect-order") and draw.random() < 0.7:
        attack.argv.append(f"data.train=file://{shop.work}/data/train")
        if attack.argv[0] == "inspect-order":
            attack.check = results.says(r"^step 2 of 2: places 4 to 7")
    return attack
