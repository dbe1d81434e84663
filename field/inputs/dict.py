"""Looks up random keys of a dict, small (fits the second cache) or large."""
import sys
import time


def walk(table, keys, count):
    state = 88172645463325252
    total = 0
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        total += table[(state >> 33) % keys]
    return total


keys = 256 if sys.argv[1] == "small" else 3 << 20
table = {key: key * 3 + 1000 for key in range(keys)}
count = 3_000_000
begun = time.perf_counter()
total = walk(table, keys, count)
took = time.perf_counter() - begun
print("sum", total)
print("op_ns %.4f" % (took / count * 1e9))
print("phase_s %.4f" % took)
