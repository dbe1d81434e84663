"""Joins and groups in duckdb on two threads."""
import duckdb

link = duckdb.connect(":memory:", config={"threads": 2})
link.execute("CREATE TABLE t AS SELECT i AS id, (i * 2654435761) % 3000000 AS k, i % 1000 AS g FROM range(3000000) r(i)")
for _ in range(3):
    print(link.execute("SELECT count(*), sum(a.k) FROM t a JOIN t b ON a.k = b.id").fetchall())
    print(link.execute("SELECT g, sum(k) FROM t GROUP BY g ORDER BY g LIMIT 3").fetchall())
