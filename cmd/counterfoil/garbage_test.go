package main

import "testing"

func TestSpareFor(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 100}, {30 * mib, 100}, {64 * mib, 100}, {65 * mib, 90}, {100 * mib, 60}, {128 * mib, 50}, {160 * mib, 50}, {4096 * mib, 50}, {1 << 63, 50}} {
		if got := spareFor(c.live); got != c.want {
			t.Errorf("%d MiB in use: %d %%, want %d", c.live/mib, got, c.want)
		}
	}
}
