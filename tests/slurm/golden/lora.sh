#!/bin/bash
#SBATCH --job-name=lora
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=dcu:4
#SBATCH --partition=dcu
#SBATCH --time=12:00:00
#SBATCH --chdir=/home/alice/work
#SBATCH --output=/home/alice/work/runs/20260301-101500-lora.slurm/out-%j.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#
# Written by dcu-launch submit. Slurm starts one task a node, dcu-launch its ranks.
# Given to sbatch again, a recipe goes on from the newest checkpoint of its run folder.

run=/home/alice/work/runs/20260301-101500-lora
files=/home/alice/work/runs/20260301-101500-lora.slurm

# Slurm sends USR1 to this shell 300 s before the time limit, or up to a minute earlier.
# bash runs traps between commands and in wait, never while a child is in the foreground.
asked=
trap 'asked=USR1; kill -USR1 $! 2>/dev/null' USR1
trap 'asked=TERM; kill -TERM $! 2>/dev/null' TERM

# the newest checkpoint
progress() { cat "$run/checkpoints/latest" 2>/dev/null; }
idle=$files/idle  # how many starts in a row brought nothing
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -f "$idle"
before=$(progress)

rm -f "$run/summary.json"
/opt/dcu/bin/dcu-launch --run-dir "$run" --save-grace 270 \
    configs/lora.yaml model.path=/models/Qwen2.5-7B data.path=train.json &
launch=$!
# asked more than once: the first time may be before dcu-launch listens
while kill -0 "$launch" 2>/dev/null; do
    if [ -z "$asked" ]; then wait "$launch"; else kill "-$asked" "$launch" 2>/dev/null; sleep 0.3; fi
done
wait "$launch"
code=$?

kind=$(sed -n 's/^  "kind": "\([a-z_]*\)".*/\1/p' "$run/summary.json" 2>/dev/null)
[ "$kind" != 'done' ] || code=0  # a signal may have come after the end
if [ "$asked" != USR1 ] || [ "${kind:-interrupted}" != interrupted ]; then
    exit "$code"
fi

# ended by the time limit: ask Slurm for another start, once, unless starts bring nothing
starts=$(($(cat "$idle" 2>/dev/null || echo 0) + 1))
[ "$(progress)" = "$before" ] || starts=0
echo "$starts" >"$idle"
trap '' TERM  # Slurm answers scontrol, and ends this start with TERM: scontrol itself, too, before it has told
if [ "$starts" -gt 3 ]; then
    echo "dcu-launch: not started again: $starts starts in a row wrote no new checkpoint" >&2
elif scontrol requeue "$SLURM_JOB_ID"; then
    echo "dcu-launch: asked Slurm to start this job again"
else
    echo "dcu-launch: Slurm does not start this job again; given to sbatch once more, it goes on" >&2
fi
exit "$code"
