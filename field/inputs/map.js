// Looks up random keys of a Map, small (fits the second cache) or large.
function walk(map, keys, count) {
  let state = 2463534242, sum = 0;
  for (let i = 0; i < count; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    sum += map.get((state >>> 1) % keys);
  }
  return sum;
}
const keys = process.argv[2] === "small" ? 256 : 3 << 20;
const map = new Map();
for (let key = 0; key < keys; key++) map.set(key, (key * 3) & 0xffff);
walk(map, keys, 200000);
const count = 25000000;
const begun = process.hrtime.bigint();
const sum = walk(map, keys, count);
const took = Number(process.hrtime.bigint() - begun) / 1e9;
console.log(`sum ${sum}\nop_ns ${(took / count * 1e9).toFixed(4)}\nphase_s ${took.toFixed(4)}`);
