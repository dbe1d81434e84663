// Looks up random keys of a map, small (fits the second cache) or large.
package main

import (
	"fmt"
	"os"
	"time"
)

func walk(m map[uint64]uint64, keys uint64, count int) uint64 {
	state, sum := uint64(88172645463325252), uint64(0)
	for i := 0; i < count; i++ {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		sum += m[state%keys]
	}
	return sum
}

func main() {
	keys, count := uint64(4<<20), 30000000
	if os.Args[1] == "small" {
		keys = 256
	}
	m := make(map[uint64]uint64, keys)
	for key := uint64(0); key < keys; key++ {
		m[key] = key * 3
	}
	begun := time.Now()
	sum := walk(m, keys, count)
	took := time.Since(begun).Seconds()
	fmt.Printf("sum %d\nop_ns %.4f\nphase_s %.4f\n", sum, took/float64(count)*1e9, took)
}
