-- Every result is determined by the statements: no dates, no random numbers.
.bail on
.mode list
PRAGMA page_size = 1024;
PRAGMA journal_mode = DELETE;
CREATE TABLE numbers(id INTEGER PRIMARY KEY, value INTEGER, weight REAL, name TEXT, data BLOB);
WITH RECURSIVE n(i, state) AS (
    SELECT 1, 12345
    UNION ALL
    SELECT i + 1, (state * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 30000)
INSERT INTO numbers
SELECT i, state % 10007, (state % 1000) / 7.0, printf('name-%05d', state % 20011),
       CASE WHEN i % 10 = 0 THEN zeroblob(i % 300) END FROM n;
SELECT count(*), sum(value), round(sum(weight), 6), count(DISTINCT name), sum(length(data)) FROM numbers;
CREATE INDEX by_value ON numbers(value, name);
CREATE UNIQUE INDEX by_both ON numbers(name, id);
EXPLAIN QUERY PLAN SELECT * FROM numbers WHERE value = 77;
SELECT value, count(*), max(name) FROM numbers GROUP BY value HAVING count(*) > 7 ORDER BY 2 DESC, 1 LIMIT 20;
SELECT a.value % 10, count(*), sum(b.value) FROM numbers a JOIN numbers b ON b.value = a.value + 1 WHERE a.id < 3000 GROUP BY 1 ORDER BY 1;
BEGIN;
UPDATE numbers SET value = value * 3 % 7919, name = upper(name) WHERE id % 3 = 0;
DELETE FROM numbers WHERE id % 7 = 2;
SAVEPOINT one;
DELETE FROM numbers;
SELECT count(*) FROM numbers;
ROLLBACK TO one;
COMMIT;
SELECT count(*), sum(value), min(name), max(name) FROM numbers;
SELECT id, value, sum(value) OVER (ORDER BY id ROWS 5 PRECEDING), rank() OVER (PARTITION BY value % 5 ORDER BY value, id) FROM numbers WHERE id < 60 ORDER BY id;
CREATE TABLE words(word TEXT PRIMARY KEY, uses INTEGER) WITHOUT ROWID;
INSERT INTO words SELECT substr(name, 6, 3), count(*) FROM numbers GROUP BY 1;
INSERT INTO words VALUES ('001', 5) ON CONFLICT(word) DO UPDATE SET uses = uses + excluded.uses;
SELECT count(*), sum(uses), group_concat(word) FROM (SELECT * FROM words ORDER BY uses DESC, word LIMIT 30);
CREATE TABLE log(old, new);
CREATE TRIGGER changed AFTER UPDATE OF value ON numbers BEGIN
    INSERT INTO log VALUES (old.value, new.value);
END;
UPDATE numbers SET value = value + 1 WHERE id BETWEEN 100 AND 400;
SELECT count(*), sum(new - old) FROM log;
CREATE VIEW heavy AS SELECT name, weight FROM numbers WHERE weight > 140;
SELECT count(*), round(avg(weight), 9) FROM heavy;
SELECT json_group_array(json_object('id', id, 'value', value)) FROM (SELECT id, value FROM numbers ORDER BY id LIMIT 50);
SELECT sum(json_extract(value, '$.a')) FROM json_each('[{"a":1},{"a":2.5},{"a":"x"},{"b":4}]');
SELECT quote(hex(zeroblob(5))), like('a%b_', 'axxbc'), glob('*[0-9]', 'ab7'), instr('hello', 'l'), round(2.5), abs(-7), typeof(1/2), 7 % 3, 1e300 * 1e300;
WITH RECURSIVE fibonacci(n, a, b) AS (SELECT 1, 0, 1 UNION ALL SELECT n + 1, b, a + b FROM fibonacci WHERE n < 80)
SELECT n, a FROM fibonacci WHERE n % 8 = 0;
WITH RECURSIVE board(placed, row) AS (
    SELECT '', 0
    UNION ALL
    SELECT placed || c.n, row + 1 FROM board, (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7) c
    WHERE row < 7 AND instr(placed, c.n) = 0
      AND NOT EXISTS (SELECT 1 FROM (SELECT 0 AS i UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6) p
                      WHERE p.i < row AND abs(substr(placed, p.i + 1, 1) - c.n) = row - p.i))
SELECT count(*), min(placed), max(placed) FROM board WHERE row = 7;
ALTER TABLE numbers ADD COLUMN extra INTEGER DEFAULT 9;
SELECT sum(extra) FROM numbers;
ANALYZE;
REINDEX;
VACUUM;
PRAGMA integrity_check;
SELECT count(*) FROM sqlite_master;
.dump words
