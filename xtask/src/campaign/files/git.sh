# A repository from nothing, with dates and names that do not change.
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME="$PWD"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.org
rm -rf repository copy
git init -q -b main repository
cd repository
i=0
while [ $i -lt 12 ]; do
    i=$((i + 1))
    export GIT_AUTHOR_DATE="2020-01-01T00:00:$((10 + i)) +0000" GIT_COMMITTER_DATE="2020-01-01T00:00:$((10 + i)) +0000"
    head -n $((i * 300)) ../words | sed "s/ba/b$i/g" > "file-$((i % 4))"
    git add .
    git commit -q -m "commit $i"
done
git checkout -q -b side HEAD~4
echo side >> file-1
git commit -q -a -m side
git checkout -q main
git merge -q -m merge side -s ours
git log --stat --format='%H %an %s' | tail -n 40
git diff --shortstat HEAD~3 HEAD
git blame -l file-1 | awk '{print $1}' | sort | uniq -c
git gc -q
git fsck --full
git rev-list --objects --all | sort | git hash-object --stdin
cd ..
git clone -q repository copy
git -C copy log --oneline | wc -l
git -C copy grep -c Qu
