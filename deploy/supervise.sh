#!/usr/bin/env bash
# Keeps one service running where no service manager does: starts it again when it ends, a growing while later
# (0.2 s to 5 s), and gives up after the exit codes that another try would repeat.
#
# usage: supervise.sh STATE NAME PROGRAM [ARGUMENT...]
#   STATE/NAME.supervisor  "pid start-time" of this script, while it runs
#   STATE/NAME.service     "pid start-time" of the service, while it runs
#   STATE/NAME.exit        the last exit code of the service
#   STATE/NAME.log         its log; the one before is kept when a start finds more than 16 MiB
# SIGTERM: passed on to the service; this script ends with it.
set -u
. "$(dirname "$0")/places.sh"
[ $# -ge 3 ] || fail $EXIT_USAGE "usage: supervise.sh STATE NAME PROGRAM [ARGUMENT...]"
state=$1 name=$2
shift 2

exec 8> "$state/$name.lock"
flock -n 8 || exit 0 # another one supervises it already
echo "$$ $(start_time $$)" > "$state/$name.supervisor"
trap 'rm -f "$state/$name.supervisor" "$state/$name.service"' EXIT

service=
stopping=
forward() {
    stopping=yes
    [ -z "$service" ] || kill -TERM "$service" 2> /dev/null
}
trap forward TERM
trap '' INT HUP

pause_ms=200
while [ -z "$stopping" ]; do
    [ "$(stat -c %s "$state/$name.log" 2> /dev/null || echo 0)" -lt $((16 << 20)) ] ||
        mv "$state/$name.log" "$state/$name.log.before"
    began=$SECONDS
    # The lock stays here: a service that outlives this script must not hold it.
    "$@" >> "$state/$name.log" 2>&1 8>&- < /dev/null &
    service=$!
    [ -z "$stopping" ] || forward # it came before there was anybody to tell
    echo "$service $(start_time $service)" > "$state/$name.service"
    # `wait` also returns when a signal comes; then the service decides when it is over.
    until wait "$service"; code=$?; [ $code -le 128 ] || ! kill -0 "$service" 2> /dev/null; do :; done
    service=
    rm -f "$state/$name.service"
    echo "$code" > "$state/$name.exit"
    case $code in
    $EXIT_USAGE | $EXIT_NO_MODEL | $EXIT_PERMISSION | $EXIT_CONFIGURATION) exit "$code" ;;
    esac
    [ $((SECONDS - began)) -lt 10 ] || pause_ms=200
    if [ -z "$stopping" ]; then
        sleep "$((pause_ms / 1000)).$(printf %03d $((pause_ms % 1000)))" 8>&- &
        wait $!
        kill $! 2> /dev/null
        pause_ms=$((pause_ms * 2 > 5000 ? 5000 : pause_ms * 2))
    fi
done
