#!/usr/bin/env bash
# From nothing to the first answer, and again at any time: installs what is missing, builds, fetches the model,
# starts coordinator and worker (both come back by themselves), asks one question. The services stay.
#
# usage: quickstart.sh [start|stop|status] [--model FILE|DIRECTORY] [--run-dir DIRECTORY]
set -euo pipefail
. "$(dirname "$0")/places.sh"

state=$cache/quickstart
services=(coordinator worker)
question="What is the capital of France?"
question_ids=1,2,3 # to a model that is served without a tokenizer
ready_seconds=60
drain_seconds=35 # the coordinator's own limit is 30 s, then it answers for one second more

usage() {
    echo "usage: quickstart.sh [start|stop|status] [--model FILE|DIRECTORY] [--run-dir DIRECTORY]"
}

command=start
chosen_model= chosen_run_dir=${TANDEM_RUN_DIR:-}
while [ $# -gt 0 ]; do
    case $1 in
    start | stop | status) command=$1 ;;
    --model | --run-dir)
        [ $# -ge 2 ] && [ -n "$2" ] || fail $EXIT_USAGE "$1 needs a value."
        if [ "$1" = --model ]; then chosen_model=$2; else chosen_run_dir=$2; fi
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    *) fail $EXIT_USAGE "unknown argument $1; $(usage)" ;;
    esac
    shift
done

# Sets run_dir. What was asked for, else what every program of Tandem looks for by itself ($XDG_RUNTIME_DIR/tandem,
# for root /run/tandem), else a directory of this user, which the hints then name.
choose_run_dir() {
    run_dir_is_standard=
    if [ -n "$chosen_run_dir" ]; then
        run_dir=$(realpath -m "$chosen_run_dir")
    elif [ -n "${XDG_RUNTIME_DIR:-}" ] && [ -d "$XDG_RUNTIME_DIR" ] && [ -w "$XDG_RUNTIME_DIR" ]; then
        run_dir=$XDG_RUNTIME_DIR/tandem
        run_dir_is_standard=yes
    elif [ "$(id -u)" -eq 0 ] && [ -z "${XDG_RUNTIME_DIR:-}" ]; then
        run_dir=/run/tandem
        run_dir_is_standard=yes
    else
        run_dir=$cache/run
        [ $((${#run_dir} + socket_name_bytes)) -le 107 ] || run_dir=/tmp/tandem-$(id -u)
    fi
    [ $((${#run_dir} + socket_name_bytes)) -le 107 ] ||
        fail $EXIT_CONFIGURATION "the run directory $run_dir is too long for a socket (at most $((107 - socket_name_bytes)) bytes): give a shorter one with --run-dir."
}
socket_name_bytes=32 # "/worker.18446744073709551615.ipc"

# A directory that others could have made first (in /tmp) must be ours alone.
make_run_dir() {
    make_directory "$run_dir" 0711
    [ ! -L "$run_dir" ] && [ "$(stat -c %u "$run_dir")" = "$(id -u)" ] ||
        fail $EXIT_PERMISSION "$run_dir belongs to somebody else: give another one with --run-dir."
    case $run_dir in
    /tmp/*) chmod 0700 "$run_dir" ;;
    esac
}

running() {
    local service
    for service in "${services[@]}"; do
        alive "$state/$service.supervisor" || return 1
    done
}

# step WHAT COMMAND...: quiet unless it fails; then the end of its output and one sentence.
step() {
    local what=$1 code=0
    shift
    "$@" > "$state/step.log" 2>&1 || code=$?
    [ $code -ne 0 ] || return 0
    ! grep -q 'No space left on device' "$state/step.log" ||
        fail $EXIT_IO "the disk of $build is full: free 200 MiB and run this again."
    tail -n 15 "$state/step.log" >&2
    fail $EXIT_SYSTEM "$what failed, its end is above and all of it in $state/step.log; mend it and run this again."
}

build_programs() {
    [ ! -e "$build" ] && [ ! -w "$tree" ] &&
        fail $EXIT_PERMISSION "cannot write to $tree: give it to $(id -un) or work in a copy of your own."
    if [ ! -f "$build/build.ninja" ]; then
        need_space "$build" 200 "the build"
        step "configuring" cmake -S "$tree" --preset release -DTANDEM_TESTS=OFF
    fi
    [ -x "$build/bin/tandem" ] || echo "building (about a minute)"
    step "building" cmake --build "$build" --target tandem-coordinator tandem-worker tandem
}

start_service() {
    local name=$1
    shift
    alive "$state/$name.supervisor" && return
    rm -f "$state/$name.exit"
    setsid "$tree/deploy/supervise.sh" "$state" "$name" "$@" < /dev/null > /dev/null 2>&1 &
    disown
    started_here+=("$name")
}

# A service that gave up said why in the last line of its log.
explain_end() {
    local name=$1 code=$2 reason hint=
    reason=$(tail -n 1 "$state/$name.log")
    reason=${reason#"tandem-$name: "}
    case $code in
    $EXIT_NO_MODEL)
        hint="; remove that file and run this again"
        [ -z "$chosen_model" ] || hint="; give another model with --model"
        ;;
    $EXIT_CONFIGURATION) hint="; stop what uses $run_dir, or give another directory with --run-dir" ;;
    esac
    stop_services "${started_here[@]}"
    fail "$code" "the $name did not start: ${reason%.}$hint (log: $state/$name.log)."
}

wait_until_ready() {
    local deadline=$((SECONDS + ready_seconds)) name
    until "$build/bin/tandem" health --run-dir "$run_dir" > /dev/null 2>&1; do
        for name in "${services[@]}"; do
            if [ -f "$state/$name.exit" ] && ! alive "$state/$name.supervisor"; then
                explain_end "$name" "$(< "$state/$name.exit")"
            fi
        done
        [ $SECONDS -lt $deadline ] ||
            fail $EXIT_UNAVAILABLE "the services were not ready within $ready_seconds s: look into $state/*.log, then stop them with $0 stop."
        sleep 0.05
    done
}

stop_services() {
    local name deadline
    for name in "$@"; do
        alive "$state/$name.supervisor" && kill -TERM "$alive_pid"
        deadline=$((SECONDS + drain_seconds))
        while alive "$state/$name.supervisor" || alive "$state/$name.service"; do
            if [ $SECONDS -ge $deadline ]; then
                alive "$state/$name.service" && kill -KILL "$alive_pid"
            elif ! alive "$state/$name.supervisor"; then
                # Its supervisor was killed: nobody else ends it.
                alive "$state/$name.service" && kill -TERM "$alive_pid"
            fi
            sleep 0.05
        done
        rm -f "$state/$name.service" "$state/$name.exit"
    done
}

hints() {
    local where=
    alive "$state/worker.service" || alive_pid=PID-OF-THE-WORKER
    [ -n "$run_dir_is_standard" ] || where=" --run-dir $run_dir"
    cat << END

Both services go on running; logs are in $state.
  ask:     $build/bin/tandem ${ask[0]}$where $([ "${ask[0]}" = chat ] && echo '"Tell me a story about a tandem."' || echo "--ids 4,5,6")
  look:    $build/bin/tandem stats$where
  break:   kill -9 $alive_pid    (the worker, while it answers: nothing is lost, another one goes on)
  stop:    $tree/deploy/quickstart.sh stop
END
}

run_start() {
    started_here=()
    choose_run_dir
    if [ -n "$chosen_model" ]; then
        [ -r "$chosen_model" ] ||
            fail $EXIT_NO_MODEL "cannot read the model $chosen_model: leave out --model to use the default one."
        model=$(realpath "$chosen_model")
    fi
    make_directory "$state" 0700
    if running; then
        run_dir=$(< "$state/run-dir")
        [ -z "$chosen_model" ] || [ "$model" = "$(< "$state/model")" ] ||
            fail $EXIT_CONFIGURATION "the services run with $(< "$state/model"): end them with $0 stop first."
    else
        "$tree/deploy/install-deps.sh"
        build_programs
        [ -n "$chosen_model" ] || "$tree/deploy/fetch-model.sh" > /dev/null
        make_run_dir
        echo "$run_dir" > "$state/run-dir"
        echo "$model" > "$state/model"
        start_service coordinator "$build/bin/tandem-coordinator" --run-dir "$run_dir" --model "$model"
        start_service worker "$build/bin/tandem-worker" --run-dir "$run_dir" --model "$model"
    fi
    wait_until_ready
    trap 'fail $EXIT_INTERRUPTED "interrupted; both services run, stop them with $0 stop."' INT TERM
    local code=0
    ask=(chat "$question")
    if "$build/bin/tandem" models --run-dir "$run_dir" | grep -q '^text  *no'; then ask=(generate --ids "$question_ids"); fi
    echo "> ${ask[-1]}"
    "$build/bin/tandem" "${ask[0]}" --run-dir "$run_dir" --temperature 0 --max-tokens 64 "${ask[@]:1}" || code=$?
    [ $code -eq 0 ] ||
        fail $code "the question was not answered, see above; both services run on, look into $state/*.log or stop them with $0 stop."
    hints
}

run_stop() {
    if ! [ -d "$state" ]; then
        echo "nothing was started"
        return
    fi
    stop_services "${services[@]}"
    echo "stopped"
}

run_status() {
    local name code=0
    for name in "${services[@]}"; do
        if alive "$state/$name.service"; then
            echo "$name: running, pid $alive_pid, log $state/$name.log"
        elif alive "$state/$name.supervisor"; then
            echo "$name: starting, log $state/$name.log"
        else
            echo "$name: stopped"
            code=1
        fi
    done
    return $code
}

started_here=()
trap 'stop_services "${started_here[@]}"; fail $EXIT_INTERRUPTED "interrupted, nothing was left running; run it again to go on."' INT TERM
run_"$command"
