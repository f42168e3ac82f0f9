package main

import (
	"strings"
	"unicode"
)

// printable keeps text that others wrote from steering a terminal: control
// characters, line ends among them, and those that change the direction of
// writing or have no width become U+FFFD.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
