#!/bin/sh
# Measures the published H200 scenarios one after another, then checks both clients on one server. Every step may be
# cut off at any time: the same command goes on. Wants a Python with SGLang in $PY, the models in $KIT_MODELS.
set -u
cd "$(dirname "$0")/.."
for scenario in "$@"; do
  "$PY" -m invoke run --scenario "$scenario" --engine process || echo "h200: $scenario ended with $?"
done
"$PY" -m bench.crosscheck --scenario h200-break-even --arm accept-3 --rounds 14 --sampler-pairs 12 \
  --point 1:40:1 --point 16:320:1 ||
  echo "h200: crosscheck ended with $?"
echo "h200: all done"
