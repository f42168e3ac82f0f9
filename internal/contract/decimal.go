package contract

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Digits of an amount before and after its point.
const (
	DecimalWhole    = 15
	DecimalFraction = 6
)

// Decimal is an amount of at least 0, kept exactly.
type Decimal struct {
	whole uint64 // below 10^15 as it is read
	micro uint64 // below 10^6
}

const microPerWhole = 1_000_000

// ParseDecimal reads an amount: digits, and perhaps a point and digits, with no sign,
// exponent or space.
func ParseDecimal(s string) (Decimal, bool) {
	whole, fraction, point := strings.Cut(s, ".")
	digits := func(s string, limit int) bool {
		return s != "" && len(s) <= limit && strings.Trim(s, "0123456789") == ""
	}
	if !digits(whole, DecimalWhole) || point && !digits(fraction, DecimalFraction) {
		return Decimal{}, false
	}
	w, _ := strconv.ParseUint(whole, 10, 64) // digits, and few enough
	m, _ := strconv.ParseUint(fraction+strings.Repeat("0", DecimalFraction-len(fraction)), 10, 64)
	return Decimal{w, m}, true
}

// String writes the amount without zeros that say nothing.
func (d Decimal) String() string {
	if d.micro == 0 {
		return strconv.FormatUint(d.whole, 10)
	}
	return strings.TrimRight(fmt.Sprintf("%d.%06d", d.whole, d.micro), "0")
}

// Compare is -1, 0 or +1, as d is less than, equal to or more than the other.
func (d Decimal) Compare(other Decimal) int {
	return cmp.Or(cmp.Compare(d.whole, other.whole), cmp.Compare(d.micro, other.micro))
}

// Plus adds. A sum of amounts that were read stays exact for 10,000 of them and beyond.
func (d Decimal) Plus(other Decimal) Decimal {
	micro := d.micro + other.micro
	return Decimal{d.whole + other.whole + micro/microPerWhole, micro % microPerWhole}
}

// Minus takes away, and gives nothing where there is less than that.
func (d Decimal) Minus(other Decimal) Decimal {
	if d.Compare(other) <= 0 {
		return Decimal{}
	}
	whole, micro := d.whole-other.whole, d.micro
	if micro < other.micro {
		whole, micro = whole-1, micro+microPerWhole
	}
	return Decimal{whole, micro - other.micro}
}

// Whole is the amount without its fraction.
func (d Decimal) Whole() uint64 { return d.whole }
