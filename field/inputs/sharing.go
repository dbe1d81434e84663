// Two goroutines count: neighbours in a line, or (argument "padded") far apart.
package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

func main() {
	counters := make([]int64, 256)
	other := 1
	if len(os.Args) > 1 {
		other = 128
	}
	var done sync.WaitGroup
	for _, place := range []int{0, other} {
		done.Add(1)
		go func() {
			defer done.Done()
			for i := 0; i < 150000000; i++ {
				atomic.AddInt64(&counters[place], 1)
			}
		}()
	}
	done.Wait()
	fmt.Println(counters[0] + counters[other])
}
