#!/bin/sh
# Run in an empty root: $1 installs a package of this script's directory, $2 starts the command, and $3 removes the
# package.
set -eu
cd "$(dirname "$0")"
for compiler in cc gcc g++ clang rustc; do
    if command -v "$compiler"; then
        echo "the root has a compiler" >&2
        exit 1
    fi
done

begin=$(date +%s%N)
eval "$1"
$2 profile -- sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'
end=$(date +%s%N)
echo $(((end - begin) / 1000000)) > milliseconds

sh ./try.sh "$2"
$2 tour
eval "$3"
