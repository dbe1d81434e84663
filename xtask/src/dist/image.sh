#!/bin/sh
# Builds the image of the directory's Containerfile and runs it, with buildah's chroot isolation and the default seccomp
# profile. Runs as root of a user namespace whose root is an ordinary user outside.
set -eu
mkdir home run tmp
export HOME="$PWD/home" XDG_RUNTIME_DIR="$PWD/run" TMPDIR="$PWD/tmp" BUILDAH_ISOLATION=chroot
# Says that this is the user namespace that buildah would make itself.
export _CONTAINERS_USERNS_CONFIGURED=done
buildah="buildah --storage-driver vfs --root $PWD/store --runroot $PWD/state"

$buildah bud --quiet --tag localhost/membound .
$buildah from --name trial localhost/membound
du --summarize --bytes "$($buildah mount trial)" | cut -f 1 > size_bytes
membound="$($buildah inspect --format '{{index .OCIv1.Config.Entrypoint 0}}' trial)"
for words in doctor 'measure latency --quick --sizes=16K,256K'; do
    # shellcheck disable=SC2086 # Both are several words.
    $buildah run trial -- $membound $words
done
