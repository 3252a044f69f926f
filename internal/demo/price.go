package demo

import (
	"fmt"
	"time"
)

// money is in millionths of a US dollar.
type money int64

// Prices of Cloud KMS for software keys, https://cloud.google.com/kms/pricing, as
// of 17 March 2025, read in November 2026. A version that is scheduled for
// destruction is active; a destroyed one is free, and so is administration:
// creating, listing, destroying.
const (
	versionMonth money = 60_000 // $0.06 for each active version
	operation    money = 3      // $0.03 for 10,000 encryptions and decryptions
)

// String rounds to cents.
func (m money) String() string {
	cents := (int64(m) + 5_000) / 10_000
	return fmt.Sprintf("$%s.%02d", thousands(cents/100), cents%100)
}

// thousands writes a number with its commas.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// installation is what a bill is for.
type installation struct{ tenants, users, months int64 }

// batch is what the key service does for one batch of erasures of a tenant, as it
// was counted: versions that are enabled, for how long the one before waits to be
// destroyed, and encryptions and decryptions.
type batch struct {
	enabled, operations int64
	delay               time.Duration
}

// design is a way to keep keys: how many versions are active all month, how many
// operations there are in one, and whether a backup can lose one user.
type design struct {
	name                 string
	versions, operations int64
	forgetsOne           bool
}

func (d design) month() money { return money(d.versions)*versionMonth + money(d.operations)*operation }

const (
	daysAMonth = 30
	day        = 24 * time.Hour
)

// ours is memd's, with erasures in every tenant every day. The receipts' key is one
// version more, of the installation.
func (i installation) ours(b batch) design {
	waiting := int64(b.delay / day) // one a day
	return design{
		name:     fmt.Sprintf("memd, erasures in every tenant every day, destroyed for good after %s", days(b.delay)),
		versions: i.tenants*(b.enabled+waiting) + 1, operations: i.tenants * daysAMonth * b.operations, forgetsOne: true,
	}
}

func days(d time.Duration) string {
	if d == day {
		return "a day"
	}
	return fmt.Sprintf("%d days", d/day)
}

// others are the two designs that are compared in
// https://davideimola.dev/blog/crypto-shredding-agent-sessions, without their
// operations.
func (i installation) others() []design {
	return []design{
		{name: "a key for each tenant, a version of it for each month kept", versions: i.tenants * i.months},
		{name: "a key for each user, a version of it for each month kept", versions: i.users * i.months, forgetsOne: true},
	}
}
