# Looks up random keys of a Hash, small (fits the second cache) or large.
keys = ARGV[0] == "small" ? 256 : 2 << 20
table = {}
keys.times { |key| table["k#{key}"] = key * 3 }
names = table.keys
state = 12_345
sum = 0
count = 2_000_000
begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
count.times do
  state = (state * 1_103_515_245 + 12_345) & 0x7fffffff
  sum += table[names[(state >> 8) % keys]]
end
took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
printf("sum %d\nop_ns %.4f\nphase_s %.4f\n", sum, took / count * 1e9, took)
