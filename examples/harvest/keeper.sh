#!/bin/sh
# The manager of a harvester as a small batch job, for weeks: sbatch keeper.sh trainers
# Two minutes before its time limit it goes back into the queue. Trainings go on meanwhile, and what
# is known of them is in the journal.
#SBATCH --job-name=keeper --ntasks=1 --cpus-per-task=1 --mem=500M
#SBATCH --time=1-00:00:00 --signal=B:USR2@120
#SBATCH --requeue --open-mode=append
manager=
trap 'scontrol requeue "$SLURM_JOB_ID"' USR2
trap '[ -z "$manager" ] || kill -USR1 "$manager"' USR1
# Slurm sends it to the manager too, which leaves; the script is to end after that.
trap : TERM
hpcext --quiet run --resume "$1" --leave &
manager=$!
# A wait that a signal interrupts is not the end of the manager.
while :; do
    wait "$manager"
    code=$?
    kill -0 "$manager" 2>/dev/null || break
done
exit "$code"
