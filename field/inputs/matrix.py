"""Multiplies and solves with numpy, whose BLAS keeps every CPU busy."""
import numpy

generator = numpy.random.default_rng(7)
a = generator.standard_normal((1600, 1600))
b = a
for _ in range(8):
    b = a @ b / 40.0
print("%.3f" % float(numpy.abs(b).mean()))
print("%.3f" % float(numpy.abs(numpy.linalg.solve(a + 40 * numpy.eye(1600), b)).mean()))
