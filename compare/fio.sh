#!/usr/bin/env bash
# Sets `varve bench iomix` beside fio on a real directory: the same sizes, depths, direct I/O, files of the same length,
# written whole just before; runs in turn. Prints a table in Markdown; the difference is the median over the runs of
# iomix's rate by fio's of the same run.
#
#   compare/fio.sh DIR [VARVE]
#
# VARVE: the command, an optimised build (default: target/release/varve). RUNS (9), SECONDS_EACH (1) and SIZE_MB (512) by
# environment. Random requests: as many threads as requests in flight on both sides (fio: psync); sequential ones: one order for all
# requests in flight, which fio has with io_uring alone. scramble_buffers=0: by default fio changes every 512 bytes of a buffer before
# it writes it, work of the processor that iomix does not do (large writes are up to 48 % slower for it on a busy machine).
set -euo pipefail
dir=${1:?"usage: compare/fio.sh DIR [VARVE]"}
varve=${2:-target/release/varve}
runs=${RUNS:-9} seconds=${SECONDS_EACH:-1} size=${SIZE_MB:-512}
command -v fio >/dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 1; }
file=$dir/fio-beside-varve.tmp
results=$(mktemp)
trap 'rm -f "$file" "$results"' EXIT
common=(--filename="$file" --size="${size}m" --direct=1 --thread --group_reporting --output-format=json --name=x --randrepeat=0 --norandommap
  --scramble_buffers=0)
# name, fio's rw, request size, in flight, share of reads, share of random places
cases=(
  "random read 4 KB, 1 in flight|randread|4k|1|100|100"
  "random read 4 KB, 32|randread|4k|32|100|100"
  "random write 4 KB, 1|randwrite|4k|1|0|100"
  "random write 4 KB, 32|randwrite|4k|32|0|100"
  "random read 64 KB, 8|randread|64k|8|100|100"
  "random write 64 KB, 8|randwrite|64k|8|0|100"
  "sequential read 2 MB, 4|read|2m|4|100|0"
  "sequential write 2 MB, 4|write|2m|4|0|0"
)
for ((run = 1; run <= runs; run++)); do
  for case in "${cases[@]}"; do
    IFS='|' read -r name rw bytes depth reads random <<<"$case"
    if [ "$random" = 100 ]; then
      how=(--ioengine=psync --numjobs="$depth")
    else
      how=(--ioengine=io_uring --iodepth="$depth")
    fi
    with_fio() {
      # As iomix does: a file that was written this moment, whose bytes the drive may still be busy with.
      rm -f "$file"
      fio "${common[@]}" --rw=write --bs=4m --ioengine=psync --end_fsync=1 >/dev/null
      fio "${common[@]}" "${how[@]}" --rw="$rw" --bs="$bytes" --time_based --ramp_time=0.2 --runtime="$seconds" |
        python3 -c "import json,sys; j=json.load(sys.stdin)['jobs'][0]; print('$name|fio|%f' % (j['read']['iops'] + j['write']['iops']))"
    }
    with_iomix() {
      "$varve" bench iomix "$dir" --size "$bytes" --depth "$depth" --reads "$reads" --random "$random" --seconds "$seconds" \
        --range "${size}m" --json | python3 -c "import json,sys; print('$name|iomix|%f' % json.load(sys.stdin)['iops'])"
    }
    # Whoever comes second finds what the first left behind: the order changes from run to run.
    if ((run % 2)); then { with_fio; with_iomix; }; else { with_iomix; with_fio; }; fi >>"$results"
  done
  echo "run $run of $runs" >&2
done
python3 - "$results" <<'PYTHON'
import collections, statistics, sys
rates = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, which, iops = line.rsplit("|", 2)
    rates[name, which].append(float(iops))
print("| requests per second, median (lowest - highest) | fio | iomix | difference |\n|---|---|---|---:|")
for name in dict.fromkeys(n for n, _ in rates):
    f, v = rates[name, "fio"], rates[name, "iomix"]
    show = lambda r: f"{statistics.median(r):,.0f} ({min(r):,.0f} - {max(r):,.0f})"
    # The two of a run follow each other within seconds: what else the machine does is much the same for both.
    pairs = statistics.median(b / a for a, b in zip(f, v))
    print(f"| {name} | {show(f)} | {show(v)} | {100 * (pairs - 1):+.0f} % |")
PYTHON
