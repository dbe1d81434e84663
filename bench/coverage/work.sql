-- What `cargo xtask bench coverage` lets sqlite3 execute.
pragma journal_mode = memory;
create table person(id integer primary key, name text not null, born integer, height real);
create table visit(id integer primary key, person integer references person, place text, at integer);
create index visit_person on visit(person, at);
create trigger tall after insert on person when new.height > 2.0
begin
  update person set name = name || ' (tall)' where id = new.id;
end;
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 1500)
insert into person(name, born, height)
  select printf('person %05d', i * 7919 % 10007), 1930 + i % 80, 1.5 + (i * 37 % 60) / 100.0 from n;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 4000)
insert into visit(person, place, at)
  select i * 31 % 1500 + 1, substr('harbourmarketlibrarystationmuseum', i % 26 + 1, 7), i * 977 % 100000 from n;
commit;
analyze;
select count(*), avg(height), min(name), max(name), total(born) from person;
select place, count(*) as n, group_concat(distinct person % 7) from visit group by place having n > 100 order by n desc, place limit 10;
select p.name, count(v.id), max(v.at) from person p left join visit v on v.person = p.id
  where p.born between 1950 and 1975 and p.name like '%7' group by p.id order by 2 desc, 1 limit 12;
select name, height, rank() over (partition by born order by height desc) as place,
  sum(height) over (order by id rows between 3 preceding and current row) from person where born in (1945, 1960) order by name limit 20;
with recursive tree(id, depth) as (select 1, 0 union all
  select id * 2 + side, depth + 1 from tree, (select 0 as side union all select 1) where depth < 9)
select depth, count(*), sum(id) from tree group by depth;
select json_extract(doc, '$.a[1].b'), json_array_length(doc, '$.a') from
  (select json_object('a', json_array(1, json_object('b', name), born)) as doc from person limit 40) limit 5;
select count(*) from person where height > (select avg(height) from person as q where q.born = person.born);
update person set height = round(height * 1.01, 2), name = replace(upper(name), 'PERSON', 'P') where id % 4 = 0;
delete from visit where at < 20000 and place glob '*r*';
select strftime('%Y-%m-%d', born * 86400 * 365, 'unixepoch'), hex(name), abs(-born), coalesce(null, height), typeof(height), quote(name) from person where id % 150 = 0;
alter table person add column note text default 'none';
create view old as select * from person where born < 1940 union all select * from person where born > 2000 except select * from person where id > 1400;
select count(*), sum(length(note)) from old;
explain query plan select * from person join visit on visit.person = person.id where born = 1970 order by at;
insert into person(id, name, born, height) values (1, 'again', 2000, 1.8) on conflict(id) do update set name = excluded.name;
select name from person where id = 1;
drop view old;
vacuum;
pragma integrity_check;
.mode csv
select id, name, height from person where id <= 25;
.mode column
select id, name, height from person where id <= 25;
.mode insert person
select id, name, height from person where id <= 25;
.dump person
