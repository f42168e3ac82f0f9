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

func TestThrift(t *testing.T) {
	const mib = 1 << 20
	memory := thrift{held: 100 * mib}
	for _, c := range []struct {
		now, after uint64 // MiB held when asked, and when all was given back
		frees      bool
	}{
		{140, 0, false},
		{148, 100, true}, // grown
		{110, 108, true}, // that helped, this does not
		{110, 0, false},
		{90, 0, false},
		{137, 0, false},
		{138, 88, true},
		{300, 200, true},
		{210, 150, true},
		{150, 150, true},
		{150, 0, false},
	} {
		holds, freed := c.now*mib, false
		memory.look(func() uint64 { return holds }, func() { holds, freed = c.after*mib, true })
		if freed != c.frees {
			t.Errorf("%d MiB: freed %t, want %t", c.now, freed, c.frees)
		}
	}
}
