#!/bin/sh
# What a user does who has just installed membound. $1 starts the command; $2 is `without-patches` where programs cannot
# be patched.
set -eu
membound=$1
patches=${2:-}
cd "$(mktemp -d)"
export HOME="$PWD"

# The exit code of the rest of the line is the one named.
code() {
    expected=$1
    shift
    found=0
    "$@" || found=$?
    if [ "$found" != "$expected" ]; then
        echo "\`$*\` ended with $found instead of $expected" >&2
        exit 1
    fi
}

code 0 $membound --version
code 0 $membound doctor
$membound completions bash > script
code 0 bash -n script
$membound man harvest run > page
code 0 test -s page
code 2 $membound man nothing
if [ "$patches" = without-patches ]; then
    exit
fi

# A machine profile, so that the first profile need not take a minute for one.
code 0 $membound measure latency calibration --quick --sizes 16K,256K,4M,64M --json machine.json
# The command has patched a process of its own.
code 0 grep -q '"ticks"' machine.json
# The program's own exit code is passed on.
loop='i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; exit 7'
code 7 $membound profile --machine machine.json -o x.run -- sh -c "$loop"
code 0 $membound report x.run
echo "everything ended as expected"
