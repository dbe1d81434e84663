"""What `cargo xtask bench coverage` lets Python execute: its core types, json, re, sqlite3.

Small counts, because every instruction is executed by valgrind. Prints one line, so that a
run that went wrong is seen.
"""

import collections
import csv
import datetime
import decimal
import functools
import hashlib
import heapq
import io
import itertools
import json
import pickle
import re
import sqlite3
import struct
import threading
import zlib

ROUNDS = 40


class Shape:
    """Attributes, properties, comparison and a method that raises."""

    sides = 0

    def __init__(self, name, size):
        self.name = name
        self.size = size

    @property
    def area(self):
        return self.size * self.size

    def __lt__(self, other):
        return self.area < other.area

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r}, {self.size:.2f})"

    def checked(self):
        if self.size % 7 == 0:
            raise ValueError(self.name)
        return self.area


class Square(Shape):
    sides = 4


def numbers(seed):
    total = 0
    for i in range(200):
        total += (i * seed) % 97 - (i << 3) // 5 + pow(i, 3, 1009)
    big = functools.reduce(lambda a, b: a * b, range(1, 80))
    quotient, rest = divmod(big, 10**40 + seed)
    floats = sum(x**0.5 + x / 3.0 for x in map(float, range(100)))
    return total + len(str(quotient)) + rest % 13 + round(floats, 3)


def texts(seed):
    words = [f"word{i * seed % 31:03d}" for i in range(120)]
    text = " ".join(words).title().replace("Word", "w\u00f6rd").encode().decode("utf-8")
    counted = collections.Counter(text.split())
    joined = ",".join(f"{key}={value}" for key, value in sorted(counted.items()))
    found = re.findall(r"(?P<key>\w+)=(\d+)", joined)
    swapped = re.sub(r"([a-z]+)(\d{2,})", lambda m: m.group(2) + m.group(1), joined, flags=re.I)
    return len(found) + len(swapped) + joined.find("030") + joined.count("=")


def containers(seed):
    shapes = [Square(f"s{i}", (i * 13 + seed) % 50) for i in range(60)]
    raised = 0
    for shape in shapes:
        try:
            shape.checked()
        except ValueError as error:
            raised += len(str(error))
    ordered = sorted(shapes)
    heap = [shape.size for shape in shapes]
    heapq.heapify(heap)
    smallest = [heapq.heappop(heap) for _ in range(10)]
    table = {shape.name: shape for shape in ordered}
    for name in list(table)[::3]:
        del table[name]
    seen = {shape.size for shape in shapes} ^ set(range(0, 50, 3))
    pairs = list(itertools.islice(itertools.combinations(sorted(seen), 2), 200))
    queue = collections.deque(pairs, maxlen=64)
    queue.rotate(5)
    return raised + sum(smallest) + len(table) + len(repr(ordered)) + queue[0][0]


def documents(seed):
    document = {
        "id": seed,
        "list": [i / 7 for i in range(40)],
        "nested": {str(i): {"text": "x\u20ac\n" * i, "none": None, "yes": True} for i in range(12)},
    }
    text = json.dumps(document, indent=1, sort_keys=True)
    again = json.loads(text)
    assert again == document
    pickled = pickle.dumps(document)
    assert pickle.loads(pickled) == document
    packed = zlib.compress(pickled)
    assert zlib.decompress(packed) == pickled
    rows = io.StringIO()
    csv.writer(rows).writerows([[i, f"v{i}", i * 0.5] for i in range(30)])
    read = list(csv.reader(io.StringIO(rows.getvalue())))
    blob = struct.pack("<IhdQ", seed, -3, 2.5, 1 << 40) * 4
    digest = hashlib.sha256(blob + pickled).hexdigest()
    return len(text) + len(packed) + len(read) + int(digest[:4], 16) * 0


def tables(database, seed):
    database.execute("create table if not exists t(id integer primary key, k integer, v text)")
    database.executemany(
        "insert into t(k, v) values (?, ?)",
        [(i * seed % 41, f"value {i % 17}") for i in range(80)],
    )
    database.execute("create index if not exists tk on t(k)")
    grouped = database.execute(
        "select v, count(*), sum(k), avg(k) from t where k between 3 and 33"
        " group by v having count(*) > 1 order by 2 desc, 1"
    ).fetchall()
    joined = database.execute(
        "select count(*) from t a join t b on a.k = b.k and a.id < b.id where a.v like '%7'"
    ).fetchone()
    database.execute("update t set v = upper(v) || ?1 where k % 5 = 0", (seed,))
    database.execute("delete from t where id % 3 = 1")
    database.commit()
    return len(grouped) + joined[0]


def times(seed):
    moment = datetime.datetime(2024, 2, 28) + datetime.timedelta(hours=seed * 7)
    money = sum(decimal.Decimal(i) / 7 for i in range(1, 20))
    return len(moment.isoformat()) + len(str(money)) + len(moment.strftime("%A %d %B %Y"))


def generated(seed):
    def produce():
        for i in range(50):
            got = yield i * seed
            if got:
                yield got

    matched = 0
    for value in produce():
        match value % 5:
            case 0:
                matched += 1
            case 1 | 2:
                matched += 2
            case rest if rest > 3:
                matched += 3
    return matched


def main():
    database = sqlite3.connect(":memory:")
    total = 0
    for seed in range(1, ROUNDS):
        for work in (numbers, texts, containers, documents, times, generated):
            total += int(work(seed))
        if seed % 4 == 0:
            total += tables(database, seed)
    sums = []
    threads = [threading.Thread(target=lambda n=n: sums.append(int(numbers(n)))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("python", total + sum(sums))


main()
