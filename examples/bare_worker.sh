#!/usr/bin/env bash
# A worker in nothing but bash and curl: it is told what to do by its tasks, and completes, fails, or pauses with a checkpoint.
#
#     examples/bare_worker.sh [URL [TOKEN_FILE [TASK_TYPE [COUNT]]]]
#
# A task's input is {"say": "complete"}, {"say": "fail"} or {"say": "pause"}. It ends after COUNT tasks; 0 means never.
set -euo pipefail

url=${1:-http://127.0.0.1:8080}
token_file=${2:-$HOME/.local/state/fumehood/bridge.token}
task_type=${3:-shell}
count=${4:-0}
worker_id=shell-$$

# The token goes to curl through a file descriptor: an argument would show in the process list.
post() { # [replace=exec] post PATH JSON [CURL OPTIONS]
    ${replace:-} curl --silent --show-error --fail-with-body "$url$1" "${@:3}" \
        --header @<(printf 'Authorization: Bearer %s\n' "$(cat "$token_file")") \
        --header 'Content-Type: application/json' --data "$2"
}

resolve() { # resolve JSON: answers the task at hand
    echo "$task_id: $1 -> $(post "/v1/tasks/$task_id/resolve" "$1")"
}

# As long as this stream is open, the worker is known to be there. `exec`, so that $! is curl's and not a shell's around it.
replace=exec post /v1/workers/connect '{"worker_id": "'"$worker_id"'", "task_types": ["'"$task_type"'"], "max_tasks": 1, "language": "bash"}' \
    --no-buffer >/dev/null &
stream=$!
trap 'kill "$stream" 2>/dev/null || true' EXIT

for ((done = 0; count == 0 || done < count; )); do
    tasks=$(post /v1/tasks/poll '{"task_types": ["'"$task_type"'"], "max_tasks": 1, "timeout_ms": 10000}')
    # The id stands first in a task, and holds no quotes: no JSON parser is needed to find it.
    task_id=$(sed -n 's/^\[{"task_id":"\([A-Za-z0-9_.-]*\)".*/\1/p' <<<"$tasks")
    [[ -n $task_id ]] || continue
    case $tasks in
        *'"checkpoint":{"page":2}'*) resolve '{"action": "complete", "output": {"page": 2}}' ;;
        *'"say":"pause"'*)
            resolve '{"action": "checkpoint", "data": {"page": 1}}'
            resolve '{"action": "pause", "duration_ms": 100, "checkpoint": {"page": 2}}'
            ;;
        *'"say":"fail"'*) resolve '{"action": "fail", "error": "as it was told"}' ;;
        *) resolve '{"action": "complete", "output": {"by": "bash"}}' ;;
    esac
    done=$((done + 1))
done
