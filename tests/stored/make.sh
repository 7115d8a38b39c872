#!/usr/bin/env bash
# Makes the folders that later commits must still read: tests/stored/make.sh NAME, with the `longmix` of the commit that
# they stand for on the path. NAME is that commit. Runs stop at step 2 of 4; expected.json tells how they end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir "$1" && cd "$1"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

python - <<'END'
import random

random.seed(0)
NOUNS = ["river", "stone", "bird", "house", "garden", "letter", "window", "road"]
VERBS = ["sees", "follows", "carries", "finds", "leaves"]
ADJECTIVES = ["old", "green", "quiet", "small", "bright"]


def sentence(number):
    return f"The {random.choice(ADJECTIVES)} {random.choice(NOUNS)} {random.choice(VERBS)} the {random.choice(NOUNS)} {number}."


with open("text.txt", "w") as file:
    for number in range(160):
        file.write(" ".join(sentence(number) for _ in range(random.randint(2, 5))) + "\n\n")
for name, count in (("train", 64), ("dev", 24)):
    with open(f"{name}.tsv", "w") as file:
        file.write("text\tlabel\n")
        for number in range(count):
            text = sentence(number)
            file.write(f"{text}\t{int('bird' in text or 'river' in text)}\n")
END
longmix prepare text --source text.txt --output data/text --vocab-size 160 --sequence-length 32 --packing one-per-row --workers 1
longmix prepare listops --output data/listops --min-length 10 --max-length 40 --train-samples 64 --validation-samples 16 \
    --test-samples 16
mkdir task && mv train.tsv dev.tsv task && rm text.txt

echo 'run: {dir: runs/none}' >empty.yaml
common=(model.hidden_size=16 model.num_hidden_layers=1 model.intermediate_size=32 model.num_attention_heads=2
    batch.samples=8 batch.micro_batch=4 optim.max_steps=4 optim.warmup_steps=1 eval.every_steps=2 eval.samples=8
    checkpoint.every_steps=2 log.every_steps=1 log.tensorboard=false precision=fp32 run.stop_at_step=2)
longmix train empty.yaml model.model_type=paramixer model.link_hidden_size=8 data.train=data/text/train \
    data.eval=data/text/validation run.dir=runs/deepspeed deepspeed=zero1 "${common[@]}" || [[ $? == 75 ]]
longmix train empty.yaml model.model_type=flt model.num_random_features=8 objective.name=classification \
    data.train=data/listops/train data.eval=data/listops/validation run.dir=runs/accelerate deepspeed=null \
    "${common[@]}" || [[ $? == 75 ]]
rm empty.yaml
longmix finetune --model runs/deepspeed/checkpoints/step-00000002/model --task custom --data task --text-columns text \
    --label-column label --seeds 1 --epochs 1 --output finetuned
rm -rf finetuned/custom/*/checkpoints
longmix export runs/deepspeed --self-contained --output self-contained
python -m zipfile -c self-contained.zip self-contained/ && rm -r self-contained # no code beside the code

# How each run ends if nothing changes: the records of its last steps.
mkdir ended && cp -r data runs ended && cd ended
for run in deepspeed accelerate; do
    longmix train "runs/$run" run.stop_at_step=null
done
longmix evaluate runs/deepspeed/model --data data/text/validation >evaluated.txt
python - <<'END' >../expected.json
import json

ended = {}
for run in ("deepspeed", "accelerate"):
    with open(f"runs/{run}/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    ended[run] = {f"{one['kind']} {one['step']}": one["loss"] for one in records if one["step"] > 2}
print(json.dumps({"losses": ended, "evaluated": open("evaluated.txt").read()}, indent=1))
END
cd .. && rm -rf ended
