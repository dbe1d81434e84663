# Round trips and sums. Everything printed follows from the file `words`.
set -e
rm -rf tree tree.tar* out back
mkdir tree back
i=0
while [ $i -lt 20 ]; do
    i=$((i + 1))
    sed -n "$((i * 100)),$((i * 700))p" words > "tree/part-$i"
done
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf tree.tar tree
openssl dgst -sha256 tree.tar
gzip -9 -n -k tree.tar
xz -6 -k tree.tar
xz -T2 --block-size=100000 -c tree.tar > tree.tar.mt.xz
for packed in tree.tar.gz tree.tar.xz tree.tar.mt.xz; do
    openssl dgst -sha512 "$packed"
done
gzip -dc tree.tar.gz | cmp - tree.tar
xz -dc tree.tar.xz | cmp - tree.tar
xz -dc tree.tar.mt.xz | cmp - tree.tar
tar -xzf tree.tar.gz -C back
diff -r tree back/tree
openssl enc -aes-256-cbc -pbkdf2 -iter 1000 -S 0102030405060708 -pass pass:secret -in tree.tar -out out
openssl dgst -sha3-256 out
openssl enc -d -aes-256-cbc -pbkdf2 -iter 1000 -S 0102030405060708 -pass pass:secret -in out | cmp - tree.tar
openssl enc -chacha20 -K 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f \
    -iv 00000000000000000000000000000001 -in words | openssl dgst -blake2b512
sort words | openssl dgst -md5
sort -t' ' -k2,2 -k1,1r -s words | openssl dgst -md5
sort --parallel=2 -S 1M -R --random-source=words words | openssl dgst -md5
awk '{ n = NF; for (i = 1; i <= n; i++) c[$i]++; s += $NF } END { m = 0; for (w in c) if (c[w] > m) m = c[w]; print s, m, length(c) }' words
grep -c 'ba.*ke' words
grep -E -o '[A-Z][a-z]+(li|mo)' words | sort | uniq -c | sort -rn -k1,1 -k2,2 | head -n 12
sed -E 's/([a-z]+) ([a-z]+)/\2 \1/; y/abc/xyz/' words | cksum
cut -d' ' -f2,3 words | tr a-z A-Z | rev 2>/dev/null | cksum || true
