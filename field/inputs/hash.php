<?php
// Looks up random keys of an array, small (fits the second cache) or large.
ini_set("memory_limit", "-1");
function walk($table, $keys, $count) {
    $state = 12345;
    $sum = 0;
    for ($i = 0; $i < $count; $i++) {
        $state = ($state * 1103515245 + 12345) & 0x7fffffff;
        $sum += $table[($state * 7) % $keys * 5];
    }
    return $sum;
}
$keys = $argv[1] === "small" ? 256 : 4 << 20;
$table = [];
for ($key = 0; $key < $keys; $key++) {
    $table[$key * 5] = $key * 3;
}
$count = 8000000;
$begun = hrtime(true);
$sum = walk($table, $keys, $count);
$took = (hrtime(true) - $begun) / 1e9;
printf("sum %d\nop_ns %.4f\nphase_s %.4f\n", $sum, $took / $count * 1e9, $took);
