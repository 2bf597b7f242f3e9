#!/bin/bash
#SBATCH --job-name=lora
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=dcu:4
#SBATCH --partition=dcu
#SBATCH --time=12:00:00
#SBATCH --chdir="/home/alice/My Work"
#SBATCH --output=/home/alice/work/runs/20260301-101500-lora.slurm/out-%j.txt
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@300
#
# Written by dcu-launch submit. Slurm starts one task a node, dcu-launch its ranks.
# Given to sbatch again, a recipe goes on from the newest checkpoint of its run folder.
# shellcheck disable=SC2016  # '$' in the words below is meant as it stands

run='/home/alice/My Work/$(touch x)'

# Slurm sends USR1 to this shell 300 s before the time limit, or up to a minute earlier.
# bash runs traps between commands and in wait, never while a child is in the foreground.
asked=
trap 'asked=USR1; kill -USR1 $! 2>/dev/null' USR1
trap 'asked=TERM; kill -TERM $! 2>/dev/null' TERM

rm -f "$run/summary.json"
/opt/dcu/bin/dcu-launch --run-dir "$run" --save-grace 270 \
    train.py 'a "b" $HOME '"'"'c'"'"'' 'line
end' '数据' '{task}' -n '&' '*' &
launch=$!
# asked more than once: the first time may be before dcu-launch listens
while kill -0 "$launch" 2>/dev/null; do
    if [ -z "$asked" ]; then wait "$launch"; else kill "-$asked" "$launch" 2>/dev/null; sleep 0.3; fi
done
wait "$launch"
code=$?

kind=$(sed -n 's/^  "kind": "\([a-z_]*\)".*/\1/p' "$run/summary.json" 2>/dev/null)
[ "$kind" != 'done' ] || code=0  # a signal may have come after the end
exit "$code"
