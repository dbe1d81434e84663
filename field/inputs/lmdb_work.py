"""Fills an LMDB environment in memory and reads random keys: lmdb_work.py DIRECTORY."""
import sys

import lmdb

environment = lmdb.open(sys.argv[1], map_size=1 << 30, sync=False, metasync=False)
count = 500_000
with environment.begin(write=True) as transaction:
    for key in range(count):
        transaction.put(b"%08d" % (key * 7919 % count), b"value %d" % key * 4)
total = 0
with environment.begin() as transaction:
    for key in range(count):
        total += len(transaction.get(b"%08d" % (key * 104729 % count)))
print(total)
