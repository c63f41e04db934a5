# Below: the same for every host. Generated above: RUN_NAME, SERVICES, READY_TIMEOUT_S, run_NAME and ready_NAME.
RUN_DIR=${SPLITPLAN_RUN_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/run}/$RUN_NAME
SCRIPT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")

started_at() {  # nothing for a process that is gone or a zombie
  local fields
  fields=$(sed -e 's/^.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
  case $fields in Z*) ;; *) echo "$fields" | cut -d' ' -f20 ;; esac
}

alive() {
  local pid began
  [ -f "$RUN_DIR/$1.pid" ] || return 1
  read -r pid began <"$RUN_DIR/$1.pid"
  [ -n "$began" ] && [ "$(started_at "$pid")" = "$began" ]
}

start_one() {
  if alive "$1"; then echo "$1 already runs"; return; fi
  local log="$RUN_DIR/$1.log"
  setsid bash "$SCRIPT" run "$1" >"$log" 2>&1 </dev/null &
  echo "$! $(started_at $!)" >"$RUN_DIR/$1.pid"
  echo "$1 started (log: $log)"
}

serves() {  # an empty list of models is not yet a service
  local body
  body=$(curl -gsf -m 5 "$1") || return 1
  case $1 in */v1/models) [[ $body == *'"id"'* ]] ;; esac
}

wait_one() {
  local ready_variable="ready_${1//-/_}" deadline=$((SECONDS + READY_TIMEOUT_S))
  local url=${!ready_variable}
  while :; do
    if ! alive "$1"; then echo "$1 ended before it was ready; last lines of $RUN_DIR/$1.log:" >&2; tail -n 5 "$RUN_DIR/$1.log" >&2; return 1; fi
    if [ -z "$url" ] || serves "$url"; then echo "$1 ready"; return; fi
    if ((SECONDS >= deadline)); then echo "$1 not ready after $READY_TIMEOUT_S s (log: $RUN_DIR/$1.log)" >&2; return 1; fi
    sleep 1
  done
}

stop_all() {
  local name pid began tries
  for name; do
    alive "$name" || continue
    read -r pid began <"$RUN_DIR/$name.pid"
    kill -TERM -- "-$pid" 2>/dev/null || true
  done
  for name; do
    for ((tries = 0; tries < 300; tries++)); do alive "$name" || break; sleep 0.1; done
    if alive "$name"; then read -r pid began <"$RUN_DIR/$name.pid"; kill -KILL -- "-$pid" 2>/dev/null || true; fi
    rm -f "$RUN_DIR/$name.pid"
    echo "$name stopped"
  done
}

action=${1:-}
shift || true
names=("$@")
[ $# -gt 0 ] || names=("${SERVICES[@]}")
for name in "${names[@]}"; do
  case " ${SERVICES[*]} " in *" $name "*) ;; *) echo "no service $name on this host; there are: ${SERVICES[*]}" >&2; exit 2 ;; esac
done
case $action in
  run) mkdir -p "$RUN_DIR" && cd "$RUN_DIR" && "run_${names[0]//-/_}" ;;
  start) mkdir -p "$RUN_DIR"; for name in "${names[@]}"; do start_one "$name"; done ;;
  wait) for name in "${names[@]}"; do wait_one "$name"; done ;;
  status) for name in "${names[@]}"; do if alive "$name"; then echo "$name running"; else echo "$name stopped"; fi; done ;;
  logs) for name in "${names[@]}"; do echo "== $name"; tail -n "${SPLITPLAN_LOG_LINES:-20}" "$RUN_DIR/$name.log" 2>/dev/null || true; done ;;
  stop) stop_all "${names[@]}" ;;
  *) echo "usage: $0 start|wait|status|logs|stop [SERVICE…]" >&2; exit 2 ;;
esac
