#!/usr/bin/env bash
# Makes tests/stored_defaults/NAME with the `longmix` of the commit NAME on the path. Runs stop at step 2 of 4;
# expected.json tells how they end. The weight decay is large enough to show in the losses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir "$1" && cd "$1"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
cp -r ../../stored/b911d7a/data .

echo 'run: {dir: runs/none}' >empty.yaml
common=(model.hidden_size=16 model.num_hidden_layers=1 model.intermediate_size=32 model.num_attention_heads=2
    batch.samples=8 batch.micro_batch=4 optim.max_steps=4 optim.warmup_steps=1 optim.weight_decay=0.5
    eval.every_steps=2 eval.samples=8 checkpoint.every_steps=2 log.every_steps=1 log.tensorboard=false precision=fp32
    deepspeed=null data.train=data/text/train data.eval=data/text/validation run.stop_at_step=2)
longmix train empty.yaml model.model_type=transformer run.dir=runs/transformer "${common[@]}" || [[ $? == 75 ]]
longmix train empty.yaml model.model_type=s3attention model.segments=4 model.row_landmarks=4 model.column_landmarks=4 \
    run.dir=runs/s3attention "${common[@]}" || [[ $? == 75 ]]
rm empty.yaml

mkdir ended && cp -r data runs ended && cd ended
for run in transformer s3attention; do
    longmix train "runs/$run" run.stop_at_step=null
done
python - <<'END' >../expected.json
import json

ended = {}
for run in ("transformer", "s3attention"):
    with open(f"runs/{run}/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    ended[run] = {f"{one['kind']} {one['step']}": one["loss"] for one in records if one["step"] > 2}
print(json.dumps(ended, indent=1))
END
cd .. && rm -rf ended data
