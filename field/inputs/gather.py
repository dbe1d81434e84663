"""Gathers from a numpy array by random indices, small (fits the second cache) or large."""
import sys
import time

import numpy

size = 4096 if sys.argv[1] == "small" else 32 << 20
data = numpy.arange(size, dtype=numpy.int64)
generator = numpy.random.default_rng(7)
places = generator.integers(0, size, 1 << 16)
shifts = generator.integers(0, size, 1200)
out = numpy.empty(len(places), dtype=numpy.int64)
total = 0
begun = time.perf_counter()
for shift in shifts:
    numpy.take(data, (places + shift) % size, out=out)
    total += int(out[17])
took = time.perf_counter() - begun
print("sum", total)
print("op_ns %.4f" % (took / len(places) / len(shifts) * 1e9))
print("phase_s %.4f" % took)
