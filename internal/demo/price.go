package demo

import "fmt"

// cents are US cents.
type cents int64

// Prices of Cloud KMS, software keys: cloud.google.com/kms/pricing, read in
// November 2026. A version that is scheduled for destruction counts as active.
const (
	activeVersionMonth cents = 6
	// manyUsers is the size that the comparison is made for.
	manyUsers = 100_000
)

func (c cents) String() string { return fmt.Sprintf("$%s.%02d", thousands(int64(c)/100), int64(c)%100) }

// thousands writes a number below a million with its comma.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// perMonth is what versions that are active all month cost.
func perMonth(versions int) cents { return cents(versions) * activeVersionMonth }
