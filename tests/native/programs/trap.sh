#!/bin/bash
# The usual script of a Slurm site: at SIGUSR1 it saves, and asks to be requeued.
step=0
[ ! -e count ] || step=$(<count)
trap 'echo "$step" >count.new; mv count.new count; scontrol requeue "${SLURM_JOB_ID-0}"; exit 0' USR1
while [ "$step" -lt "$1" ]; do
    read -r -t 0.02 <> <(:) || :
    step=$((step + 1))
    echo "$step ${EPOCHREALTIME/,/.}" >>steps
done
