#!/bin/sh
# Fuzzes decoders, one after another: fuzz.sh [SECONDS [TARGET…]]; all targets for 60 seconds each by default.
#
# Owns: what a run needs, and where its files are: $FASTCHANGELOG_CACHE/fuzz (compiled, and the corpus that grows).
# Does not own: the fuzzers and their checked-in seeds (rust/fuzz). Inputs that fail are beside the log that is
# named: copy them to rust/fuzz/regressions/TARGET/, where every `make test` reads them.
set -eu
cd "$(dirname "$0")/../rust/fuzz"
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "fuzzing needs a nightly Rust compiler: rustup toolchain install nightly --profile minimal" >&2
    exit 2
fi
python=$(sh ../../scripts/find_python.sh)
fuzz=$("$python" ../../scripts/setup.py cargo-tool fuzz)
PATH=$(dirname "$fuzz"):$PATH
seconds=${1:-60}
[ $# -eq 0 ] || shift
home=${FASTCHANGELOG_CACHE:-$HOME/.cache/fastchangelog}/fuzz
failed=
for target in ${*:-$(cargo fuzz list --fuzz-dir .)}; do
    found=$home/found/$target
    mkdir -p "$home/corpus/$target" "$found"
    if cargo +nightly fuzz run --fuzz-dir . --target-dir "$home/target" "$target" "$home/corpus/$target" "seeds/$target" \
        -- -max_total_time="$seconds" -max_len=4096 -malloc_limit_mb=1024 -rss_limit_mb=3072 -timeout=10 \
        -dict=dictionary -print_final_stats=1 -artifact_prefix="$found/" >"$found/log" 2>&1
    then
        echo "[fuzz] $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs, nothing found"
    else
        failed="$failed $target"
        echo "[fuzz] $target: failed, see $found/log"
        grep -h -A2 'panicked at\|ERROR: \|^error' "$found/log" | head -n 12 || true
    fi
done
[ -z "$failed" ] || { echo "[fuzz] failed:$failed" >&2; exit 1; }
