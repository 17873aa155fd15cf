#!/bin/sh
# Checks a submission: ./validate-submission.sh URL [DIR]
# the live server at URL, the image build in DIR where docker runs, and `openenv validate` on both.
set -u

usage() {
    echo "usage: $0 URL [DIR]   (URL of a running server, such as http://127.0.0.1:8000; DIR of the checkout, . if not given)" >&2
    exit 2
}

[ $# -ge 1 ] && [ $# -le 2 ] || usage
url=${1%/}
dir=${2:-.}
case $url in http://*|https://*) ;; *) usage ;; esac
[ -f "$dir/openenv.yaml" ] || { echo "$0: $dir/openenv.yaml: not there: DIR is the folder of the checkout" >&2; exit 2; }

bin=
[ -x "$dir/.venv/bin/openenv" ] && bin=$dir/.venv/bin/
python=${PYTHON:-$(command -v "${bin}python" || command -v python3)}
failed=0

check() {
    name=$1
    shift
    if said=$("$@" 2>&1); then
        echo "PASS  $name"
    else
        echo "FAIL  $name"
        printf '%s\n' "$said" | tail -n 20 | sed 's/^/      /'
        failed=$((failed + 1))
    fi
}

reset_answers() {
    "$python" - "$url" <<'PYTHON'
import json, sys, urllib.request

url = sys.argv[1]
for task in ("task1", "task2", "task3", "task4"):
    request = urllib.request.Request(
        f"{url}/reset", json.dumps({"task_id": task, "seed": 1}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        seen = json.load(answer)
    assert seen["done"] is False and seen["observation"]["metadata"]["task_id"] == task, seen
PYTHON
}

check "the server resets all four tasks" reset_answers
check "openenv validate --url $url" "$python" -m openenv.cli validate --url "$url" --timeout 30
check "openenv validate --level static" "$python" -m openenv.cli validate "$dir" --level static
[ -f "$dir/inference.py" ] && check "inference.py compiles" "$python" -c "compile(open('$dir/inference.py').read(), 'inference.py', 'exec')" \
    || { [ -f "$dir/inference.py" ] || { echo "FAIL  inference.py is not in $dir"; failed=$((failed + 1)); }; }
if command -v docker >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
    check "docker build" docker build -q -t mech_interp "$dir"
else
    echo "SKIP  docker build: no docker daemon here"
fi

[ "$failed" -eq 0 ] && echo "all checks passed" || echo "$failed failed"
[ "$failed" -eq 0 ]
