#!/bin/sh
# Profiles two commands in turn, compares their runs and writes the job summary.
# action.yml says what the variables hold. Exit codes: 0 passed, 1 failed, 2 no verdict.
set -u

say() {
  printf '%s\n' "$*"
}

output() {
  [ -z "${GITHUB_OUTPUT:-}" ] || printf '%s\n' "$1=$2" >>"$GITHUB_OUTPUT"
}

# Ends without a verdict; the first line of the reason becomes an annotation.
give_up() {
  say "::error title=membound gate::$*"
  output verdict error
  exit 2
}

# Sets `membound` to a binary that runs.
find_membound() {
  membound=$GATE_MEMBOUND
  if [ -z "$membound" ]; then
    place=${RUNNER_TEMP:-${TMPDIR:-/tmp}}/membound-gate-python
    say "installing $GATE_WHEEL"
    python3 -m venv "$place" || give_up "python3 cannot make an environment in $place"
    "$place/bin/pip" install --quiet --disable-pip-version-check "$GATE_WHEEL" ||
      give_up "pip cannot install $GATE_WHEEL"
    membound=$place/bin/membound
  fi
  case $membound in
    */*) ;;
    *) membound=$(command -v "$membound") || give_up "there is no $GATE_MEMBOUND" ;;
  esac
  "$membound" --version || give_up "$membound does not run"
}

# profile SIDE NUMBER COMMAND
profile() {
  say "$1, run $2 of $GATE_RUNS"
  if [ -n "$GATE_MACHINE" ]; then
    "$membound" profile --quiet --machine "$GATE_MACHINE" -o "$GATE_DIRECTORY/$1-$2.run" -- \
      sh -c "$3"
  else
    "$membound" profile --quiet -o "$GATE_DIRECTORY/$1-$2.run" -- sh -c "$3"
  fi || give_up "run $2 of $1 ended with exit code $?"
}

[ -n "${GATE_BASE:-}" ] || give_up "the input base is empty"
[ -n "${GATE_HEAD:-}" ] || give_up "the input head is empty"
: "${GATE_FAIL_ON:=memory-bound +3pt}" "${GATE_RUNS:=10}" "${GATE_UNDECIDED:=pass}"
: "${GATE_DIRECTORY:=membound-gate}" "${GATE_MACHINE:=}" "${GATE_MEMBOUND:=}"
: "${GATE_WHEEL:=membound}"
case $GATE_RUNS in
  [1-9] | [1-9][0-9]) ;;
  *) give_up "the input runs is \`$GATE_RUNS\`: use 1 to 99" ;;
esac
find_membound
mkdir -p "$GATE_DIRECTORY" || give_up "cannot make the directory $GATE_DIRECTORY"
# What an earlier gate left would be taken for this one's.
rm -f "$GATE_DIRECTORY"/base-*.run "$GATE_DIRECTORY"/head-*.run "$GATE_DIRECTORY"/gate.*
output directory "$GATE_DIRECTORY"

# The arguments of the comparison that are known before anything runs.
set -- --undecided "$GATE_UNDECIDED"
while IFS= read -r expression; do
  # Blank lines separate expressions for readers.
  case $expression in
    *[!\ ]*) set -- "$@" --fail-on "$expression" ;;
  esac
done <<EXPRESSIONS
$GATE_FAIL_ON
EXPRESSIONS

# Arguments are read before files are: without files only a bad argument has exit code 2.
reason=$("$membound" compare "$@" --base "$GATE_DIRECTORY/base-0.run" \
  --new "$GATE_DIRECTORY/head-0.run" 2>&1)
[ $? -ne 2 ] || give_up "$reason"

number=1
while [ "$number" -le "$GATE_RUNS" ]; do
  # In turn, and each first in half of the turns: what changes on the machine meets both.
  if [ $((number % 2)) -eq 1 ]; then
    profile base "$number" "$GATE_BASE"
    profile head "$number" "$GATE_HEAD"
  else
    profile head "$number" "$GATE_HEAD"
    profile base "$number" "$GATE_BASE"
  fi
  number=$((number + 1))
done

"$membound" compare "$@" --base "$GATE_DIRECTORY"/base-*.run --new "$GATE_DIRECTORY"/head-*.run \
  --json "$GATE_DIRECTORY/gate.json" --html "$GATE_DIRECTORY/report.html" \
  --markdown "$GATE_DIRECTORY/gate.md" --junit "$GATE_DIRECTORY/gate.xml"
code=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -f "$GATE_DIRECTORY/gate.md" ]; then
  cat "$GATE_DIRECTORY/gate.md" >>"$GITHUB_STEP_SUMMARY"
fi
case $code in
  0) output verdict passed ;;
  1)
    # Also the exit code of a comparison that could not be made, which writes no document.
    [ -f "$GATE_DIRECTORY/gate.json" ] || give_up "the runs cannot be compared"
    say "::error title=membound gate::the program waits for memory for longer than is allowed"
    output verdict failed
    ;;
  *) give_up "the runs cannot be compared (exit code $code)" ;;
esac
exit "$code"
