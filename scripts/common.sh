# Sourced by ./quickstart, ./run-tests and scripts/*: speaking, failing, timing.

export LC_ALL=C.UTF-8
SECONDS=0

die() {  # die SENTENCE [EXIT_CODE]; 4: the environment lacks something
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit "${2:-1}"
}

steps_total=1
steps_done=0
step() {  # step TITLE
  steps_done=$((steps_done + 1))
  printf '\n[%d/%d] %s  (%ds so far)\n' "$steps_done" "$steps_total" "$1" "$SECONDS"
}

# logged LOG COMMAND...: quiet; on failure the end of the log is shown.
logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return 0
  local code=$?
  printf '%s\n' "--- the end of $log ---" >&2
  tail -n 40 "$log" >&2
  return "$code"
}

# preset_for PRESET FOLDER: a clean build takes half as long with files compiled eight at a time. A folder that somebody
# configured without stays so, for one changed file then costs one.
preset_for() {
  if [ -f "$2/CMakeCache.txt" ]; then echo "$1"; else echo "$1-unity"; fi
}

# build LOG FOLDER TARGET...: ninja's one moving line on a terminal, a log elsewhere.
build() {
  local log=$1 folder=$2
  shift 2
  if [ -t 1 ]; then
    ninja -C "$folder" "$@"
  else
    logged "$log" ninja -C "$folder" "$@"
  fi
}
