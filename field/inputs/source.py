"""Writes a source file with many functions: source.py c|rs|go|java COUNT."""
import sys

language, count = sys.argv[1], int(sys.argv[2])
body = {
    "c": "int f{i}(int a, int b) {{ int s = {i}; for (int k = 0; k < a; k++) {{ if (k % {m} == 0) s += b * k; else s ^= (b << ({i} % 7)) + k; }} return s; }}",
    "rs": "pub fn f{i}(a: i32, b: i32) -> i32 {{ let mut v: Vec<i32> = (0..a).map(|k| k.wrapping_mul(b) ^ {i}).collect(); v.sort(); v.iter().filter(|k| *k % {m} == 0).fold({i}, |s, k| s.wrapping_add(*k)) }}",
    "go": "func f{i}(a, b int) int {{ m := map[int]int{{}}; s := {i}; for k := 0; k < a; k++ {{ m[k%{m}] += b * k; s ^= m[k%{m}] }}; return s }}",
    "java": "static int f{i}(int a, int b) {{ java.util.List<Integer> v = new java.util.ArrayList<>(); for (int k = 0; k < a; k++) v.add(k * b ^ {i}); return v.stream().filter(k -> k % {m} == 0).mapToInt(k -> k).sum(); }}",
}[language]
ends = {"c": ("", ""), "rs": ("", "fn main() {}"), "go": ("package main\n", "func main() {}"), "java": ("class Source {", "}")}[language]
print(ends[0])
for i in range(count):
    print(body.format(i=i, m=i % 13 + 2))
calls = {"c": "", "rs": "", "go": "", "java": ""}[language]
print(ends[1])
