# Where things lie, and how a script of this folder ends with one sentence. Sourced, never run.

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${TANDEM_BUILD:-$tree/build/release}
home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
cache=${XDG_CACHE_HOME:-${home:-/tmp/tandem-$(id -u)}/.cache}/tandem
model_name=SmolLM2-135M-Instruct.Q4_1.gguf
model=$cache/$model_name

# Exit codes are those of common/exit_codes.h: a supervisor or CI reads them.
readonly EXIT_USAGE=64 EXIT_NO_MODEL=66 EXIT_UNAVAILABLE=69 EXIT_SYSTEM=71 EXIT_IO=74 EXIT_PERMISSION=77 \
    EXIT_CONFIGURATION=78 EXIT_INTERRUPTED=130

# fail CODE SENTENCE: the sentence on stderr, then the end.
fail() {
    printf '%s: %s\n' "${0##*/}" "$2" >&2
    exit "$1"
}

# free_kib DIRECTORY: what a plain user may still write there; the nearest parent that exists counts.
free_kib() {
    local place=$1
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    df -Pk "$place" | awk 'NR == 2 { print $4 }'
}

# need_space DIRECTORY MIB WHAT
need_space() {
    [ "$(free_kib "$1")" -ge $(($2 * 1024)) ] ||
        fail $EXIT_IO "the disk of $1 is full: $3 needs $2 MiB there; free some and run this again."
}

# make_directory DIRECTORY MODE: makes it, or says who must.
make_directory() {
    local reason
    reason=$(mkdir -p -m "$2" "$1" 2>&1) && [ -w "$1" ] && return
    fail $EXIT_PERMISSION "cannot write to $1 (${reason:-not yours}): give it to $(id -un) or choose another one."
}

# start_time PID: when the kernel started it, in ticks; with the pid it names one process for ever.
start_time() {
    local stat
    { stat=$(< "/proc/$1/stat"); } 2>/dev/null || return 1
    # The name of the program, in parentheses, may hold blanks: fields are counted behind it.
    set -- ${stat##*) }
    echo "${20}"
}

# alive FILE: whether the process that FILE names ("pid start-time") still runs; its pid in $alive_pid.
alive() {
    local started
    alive_pid= started=
    [ -f "$1" ] && read -r alive_pid started < "$1" && [ -n "$started" ] &&
        [ "$(start_time "$alive_pid")" = "$started" ]
}
