PRAGMA cache_size = -200000;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 600000)
INSERT INTO t SELECT x, (x * 2654435761) % 600000, hex(x * 7919) FROM c;
CREATE INDEX tk ON t(k);
SELECT count(*), sum(length(b.v)) FROM t a JOIN t b ON b.k = a.id WHERE a.id % 2 = 0;
SELECT k % 100 AS g, count(*), max(v) FROM t GROUP BY g ORDER BY g LIMIT 5;
