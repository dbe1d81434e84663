"""Writes rows of text: rows.py COUNT, the same every time."""
import sys

state = 12345
for row in range(int(sys.argv[1])):
    words = []
    for _ in range(6):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        words.append("%x" % (state >> (40 + state % 11)))
    print(row, " ".join(words))
