#!/bin/bash
# Counts until its gate is open, and saves at SIGTERM by its own means; it knows nothing of hpcext.
trap 'echo $n >saved; exit 0' TERM
n=$(cat saved 2>/dev/null || echo 0)
until test -e gate; do
    n=$((n + 1))
    echo $n >>own.steps
    sleep 0.1
done
echo over
