#!/usr/bin/env bash
# The Worker API with nothing but curl: health, a job, its replay, a conflict, a timeout.
#
#     examples/worker_api.sh [URL [TOKEN_FILE]]
set -euo pipefail

url=${1:-http://127.0.0.1:8090}
token_file=${2:-$HOME/.local/state/fumehood/worker-api.token}
image=127.0.0.1:5055/fumehood/base:1
task_id=$(cat /proc/sys/kernel/random/uuid)

# The token goes to curl through a file descriptor: an argument would show in the process list.
post() { # post JOB_ID COMMAND_AS_JSON TIMEOUT_SECONDS
    curl --silent --show-error "$url/v1/worker/jobs:run" \
        --header @<(printf 'Authorization: Bearer %s\n' "$(cat "$token_file")") \
        --header 'Content-Type: application/json' \
        --write-out '\n-> %{http_code}, reason: %header{fumehood-exit-reason}\n\n' \
        --data '{
            "version": 1,
            "task_id": "'"$task_id"'",
            "job_id": "'"$1"'",
            "sandbox": {"image": "'"$image"'", "command": '"$2"', "timeout_seconds": '"$3"'}
        }'
}

echo "healthz: $(curl --silent --show-error "$url/healthz")"
echo "readyz:  $(curl --silent --show-error "$url/readyz")"
echo

job_id=$(cat /proc/sys/kernel/random/uuid)
echo "# a job"
post "$job_id" '["bash", "-lc", "echo hello; date +%N"]' 60
echo "# the same one again: the stored answer, nothing runs"
post "$job_id" '["bash", "-lc", "echo hello; date +%N"]' 60
echo "# the same id for something else: 409"
post "$job_id" '["bash", "-lc", "echo something else"]' 60
echo "# out of time: status timeout, no exit code, the output until then"
post "$(cat /proc/sys/kernel/random/uuid)" '["bash", "-c", "echo begun; sleep 60"]' 1
echo "# no such program: 127, and the header says that it never started"
post "$(cat /proc/sys/kernel/random/uuid)" '["no-such-program"]' 60
