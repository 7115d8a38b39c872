"""Words of the command line: numbers, names, options that are none; of ./quickstart, too."""

from .. import mutations
from ..attack import Attack, Workshop

# Commands whose words are changed. Those that make data make little of it.
LINES = """
train run.yaml --check --processes 1
sweep sweep.yaml --seeds 2 --parallel 1 --share 0/1
report sweep --output out
inspect-order run.yaml --step 1 --processes 1
finetune --model run/model --data glue --output tuned --seeds 1 --epochs 1 --task cola --lr 5e-5 --batch-size 32\
 --max-length 24 --precision fp32 --jobs 1
finetune --model run/model --task custom --data custom --output out --seeds 1 --epochs 1 --text-columns body\
 --label-column stars
evaluate run/model --data data/validation --samples 4 --micro-batch 2
evaluate run/model --fill [MASK] --top 2
export run --step 2 --output out
requeue run.yaml --job 7 --code 75
prepare text --source text.txt --output out --vocab-size 45 --sequence-length 24 --workers 1
prepare text --source corpus.jsonl --column text --output out --tokenizer data/tokenizer --sequence-length 24\
 --documents record --workers 1
prepare probe --task copy --distance 2 --length 8 --samples 20 --seed 0 --output out
prepare adding --length 8 --train-samples 20 --validation-samples 4 --test-samples 4 --seed 0 --output out
prepare temporal-order --length 8 --train-samples 20 --validation-samples 4 --test-samples 4 --seed 0 --output out
prepare lego --variables 4 --trained-variables 2 --train-samples 20 --validation-samples 4 --test-samples 4 --seed 0\
 --output out
prepare listops --max-depth 3 --max-arguments 3 --min-length 3 --max-length 30 --train-samples 20\
 --validation-samples 4 --test-samples 4 --seed 0 --output out
prepare pathfinder --path-length 6 --samples 16 --seed 0 --output out
prepare points --samples 20 --points 2 4 --seed 0 --output out
prepare text-bytes --source sources/reviews --length 20 --validation-share 0.2 --test-share 0.2 --share 1 --seed 0\
 --label-column label --text-column text --output out
prepare forecasting --source sources/series.csv --split ratio --drop-columns b --output out
prepare image --train sources/train.npy sources/train_labels.npy --test sources/test.npy sources/test_labels.npy\
 --samples 10 --noise 2 --size 4 --seed 0 --output out
doctor
""".strip().splitlines()
QUICKSTART = ["--text", "text.txt", "--glue", "glue", "--output", "out", "--minutes", "0.01", "--megabytes", "0.1"]
NUMBERS = (
    "0",
    "-1",
    "x",
    "",
    "1.5",
    "1e3",
    "nan",
    "inf",
    "-inf",
    "2147483648",
    "9" * 30,
    "1_0",
    "\u0663",
    " 1",
    "1e400",
    "1e-400",
    "0x1",
)
# How much work is asked for: what is too much would be done all the same.
AMOUNTS = (
    "--train-samples",
    "--validation-samples",
    "--test-samples",
    "--samples",
    "--seeds",
    "--epochs",
    "--length",
    "--distance",
    "--points",
    "--workers",
    "--max-length",
)
SMALL = tuple(text for text in NUMBERS if text not in ("2147483648", "9" * 30))


def make(shop: Workshop) -> Attack:
    draw = shop.draw
    shop.take("data", "run.yaml", "run", "glue", "custom", "text.txt", "corpus.jsonl", "sweep", "sweep.yaml", "sources")
    if draw.random() < 0.12:
        return _quickstart(shop)
    words = draw.choice(LINES).split()
    place = draw.randrange(1, len(words) + 1)
    kind = draw.random()
    if kind < 0.6 and place < len(words):
        before = words[place - 1]
        words[place] = draw.choice(SMALL if before in AMOUNTS else (*NUMBERS, *mutations.TEXTS))
    elif kind < 0.75 and place < len(words):
        del words[place]
    elif kind < 0.85:
        words.insert(
            place,
            draw.choice(("--unknown", "--", "-h", "--help", "-x", "--output", "=", "optim.lr=", "[", "{", "a" * 5000)),
        )
    else:
        words.insert(place, draw.choice(mutations.TEXTS))
    words = [
        word.replace("\0", "").encode("utf-8", "surrogateescape" if "\udcff" in word else "replace").decode()
        for word in words
    ]
    # What was there stays as it is: only runs go on.
    return Attack(
        words,
        "words of the command",
        lambda shop, ended: None,
        ("*", "sweep", "run"),
        (1,),
        "not started again|the same command runs them again",
    )


def _quickstart(shop: Workshop) -> Attack:
    """Arguments of ./quickstart that it must refuse: it would train for minutes otherwise."""
    draw = shop.draw
    words = list(QUICKSTART)
    place = draw.choice((1, 3, 5, 7, 9))
    bad = {
        1: ("nothing", "a b/c", "\x1b[31m", "../none", "a/b/c/d e"),
        3: ("nothing", "text.txt", "\x1b[31m", "a b/c"),
        5: ("text.txt", "data", "mine", "text.txt/x"),
        7: ("0", "-1", "x", "nan", "inf", "", "1e400"),
        9: ("0", "-1", "x", "nan", "inf", "", "1e400"),
    }
    words[place] = draw.choice(bad[place])
    return Attack(
        words,
        f"{words[place - 1]} {words[place]!a}",
        lambda shop, ended: "it began",
        ("out",),
        program="trainer.quickstart",
    )
