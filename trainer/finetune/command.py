"""`longmix finetune`: tasks, seeds and learning rates into one results table."""

import argparse

from longmix.data_prep.options import output_folder

from ..settings.mistakes import say_loading
from .rates import DEFAULT_LEARNING_RATE, ITS_WIDTH
from .tasks import CLASS_METRICS, CUSTOM, FROM_MNLI_TASKS, TASKS

DESCRIPTION = """Fine-tune a checkpoint on GLUE, or on a task of your own, with several seeds, and tabulate the results.

The checkpoint is one of longmix or any Hugging Face encoder. Each task and seed is one run below OUTPUT/TASK; a run
that is finished is used again, an interrupted one goes on: give the same command again. The best checkpoint of a run
is chosen on a tenth of the training data, at least an example of each class; the dev set is read for the reported
figures alone. OUTPUT holds results.json, results.md, and submission/ with predictions of the test files in GLUE's
format."""

EPILOG = """examples:
  longmix finetune --model runs/small/model --task cola --task sst2 --data glue --output runs/glue
  longmix finetune --model bert-base-uncased --task all --data hub:nyu-mll/glue --output runs/bert --seeds 3
  longmix finetune --model runs/small/model --task custom --data reviews --text-columns title body --label-column stars
                   --output runs/reviews
  longmix finetune --model runs/small/model --task rte --task mrpc --intermediate mnli --data glue --output runs/pairs
  longmix finetune --model runs/small/model --task sst2 --data glue --intermediate custom --intermediate-data reviews
                   --text-columns text --label-column stars --lr 1e-4 3e-4 1e-3 --search-seeds 1 --output runs/sst2

epochs by default: """


def add_finetune_parser(subparsers) -> argparse.ArgumentParser:
    """Add `finetune` to the command line; its arguments go to `run`."""
    parser = subparsers.add_parser(
        "finetune",
        help="fine-tune a checkpoint on GLUE or on a task of your own",
        description=DESCRIPTION,
        epilog=EPILOG + ", ".join(f"{task.name} {task.epochs}" for task in TASKS.values()) + ", custom 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, metavar="MODEL", help="model folder, run, checkpoint or hub name")
    parser.add_argument(
        "--task",
        required=True,
        action="append",
        choices=[*TASKS, "all", CUSTOM],
        help="a GLUE task (may be given several times), all of them, or a task of your own (custom)",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="FOLDER|hub:NAME",
        help="GLUE's folder (CoLA/train.tsv, ..., or cola/train-*.parquet as on the hub), a hub data set such as "
        "hub:nyu-mll/glue; for custom a folder with train, dev and test as .tsv, .csv, .jsonl or .parquet, or hub:NAME",
    )
    parser.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="folder of runs, results and submission"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each task, seeds 0 to N-1 (5)")
    parser.add_argument(
        "--lr",
        type=float,
        nargs="+",
        help=f"peak learning rate ({DEFAULT_LEARNING_RATE:g} for models of width {ITS_WIDTH}, in inverse proportion to "
        "the width of others, and half of it with --relative-lr); of several, the selection split chooses, for each "
        "task",
    )
    parser.add_argument(
        "--search-seeds",
        type=int,
        metavar="N",
        help="seeds on which several learning rates compete, the first ones (all); the chosen rate runs with all seeds",
    )
    parser.add_argument("--epochs", type=int, help="passes over the training data (by task, see below)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in an optimizer step (32)")
    parser.add_argument(
        "--micro-batch", type=int, metavar="N", help="examples in the memory of a device at a time (all of a batch)"
    )
    parser.add_argument("--dropout", type=float, metavar="P", help="dropout while fine-tuning (the checkpoint's own)")
    parser.add_argument("--weight-decay", type=float, default=0.01, metavar="W", help="AdamW's weight decay (0.01)")
    parser.add_argument(
        "--warmup-share",
        type=float,
        default=0.06,
        metavar="S",
        help="share of the steps over which the learning rate rises (0.06); it falls to 0 over the others",
    )
    parser.add_argument(
        "--relative-lr",
        action=argparse.BooleanOptionalAction,
        help="multiply the rate of a matrix or an embedding by its root mean square over 0.02, where that is above 1 "
        "(yes for longmix's models, no for others)",
    )
    parser.add_argument("--max-length", type=int, help="longest input in tokens; longer ones are cut (128)")
    parser.add_argument(
        "--intermediate",
        metavar="TASK",
        choices=[*TASKS, CUSTOM],
        help=f"train this task first, with one seed below OUTPUT and the epochs that are its default, and start the "
        f"others from its model; with mnli {', '.join(FROM_MNLI_TASKS)} start from it",
    )
    parser.add_argument(
        "--intermediate-data",
        metavar="FOLDER|hub:NAME",
        help="data of the intermediate task, laid out as --data (--data)",
    )
    parser.add_argument(
        "--from-mnli",
        metavar="CHECKPOINT",
        help=f"start {', '.join(FROM_MNLI_TASKS)} from this checkpoint of MNLI, which exists",
    )
    parser.add_argument(
        "--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto", help="auto asks the GPU; fp32 on a CPU"
    )
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="custom: the names of the columns of files without a header"
    )
    parser.add_argument(
        "--text-columns",
        nargs="+",
        metavar="NAME",
        help="custom: the columns that hold the text (all but the label, with --columns); from the second on they make "
        "the second text of a pair",
    )
    parser.add_argument("--label-column", metavar="NAME", help="custom: the column of the class or value (label)")
    parser.add_argument("--regression", action="store_true", help="custom: the label is a number")
    parser.add_argument(
        "--metric",
        choices=CLASS_METRICS,
        help=f"custom: the metric of classes that is the score, and chooses checkpoints and rates ({CLASS_METRICS[0]})",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs side by side (one for each GPU; 1 without); each sees one GPU"
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0, or 75 when a signal asked to stop. Raises UserError for the user's mistakes."""
    from . import options

    options.check(arguments)
    say_loading("finetune")
    # Not at the top: `longmix --help` needs no torch.
    from .session import run as run_session

    return run_session(arguments)
