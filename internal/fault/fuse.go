package fault

import (
	"fmt"
	"maps"
	"sync"

	"forgettable.dev/memd"
)

// Mode says what becomes of the k-th effect, and of those after it.
type Mode int

// The modes. After a crash nothing more gets through, as if the process had
// died; a stumble is over at once.
const (
	CrashBefore Mode = iota
	CrashAfter
	StumbleBefore
	StumbleAfter
)

// Modes are all of them.
var Modes = []Mode{CrashBefore, CrashAfter, StumbleBefore, StumbleAfter}

// String returns the mode's name.
func (m Mode) String() string {
	return [...]string{"crash before", "crash after", "stumble before", "stumble after"}[m]
}

func (m Mode) crash() bool { return m <= CrashAfter }
func (m Mode) after() bool { return m == CrashAfter || m == StumbleAfter }

// Kinds of effects.
const (
	Statement = "statement"
	KMSCall   = "KMS call"
	Ledger    = "ledger operation"
)

// Err is what a caller behind a blown fuse gets: the other side is away.
var Err = fmt.Errorf("fuse has blown: %w", memd.ErrKeyUnavailable)

// Fuse counts effects of all kinds in one line and blows at the k-th. Unarmed
// it only counts. Safe for concurrent use.
type Fuse struct {
	mu     sync.Mutex
	at     int
	mode   Mode
	count  int
	kinds  map[string]int
	blown  bool
	hit    string
	onBlow []func()
}

// Arm starts counting again, and blows at the k-th effect; 0 never blows.
func (f *Fuse) Arm(k int, mode Mode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.mode, f.count, f.blown, f.hit, f.kinds = k, mode, 0, false, "", map[string]int{}
}

// Disarm lets everything through again.
func (f *Fuse) Disarm() { f.Arm(0, CrashBefore) }

// Blown reports whether the k-th effect was reached, and its kind.
func (f *Fuse) Blown() (kind string, blown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit, f.blown
}

// Counts returns how many effects of each kind there were since Arm.
func (f *Fuse) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.kinds)
}

// OnBlow has fn called at the moment of a crash, before anybody is told of it.
func (f *Fuse) OnBlow(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onBlow = append(f.onBlow, fn)
}

type verdict int

const (
	goOn verdict = iota
	refuse
	loseAnswer
)

func (f *Fuse) meet(kind string) verdict {
	f.mu.Lock()
	if f.blown && f.mode.crash() {
		f.mu.Unlock()
		return refuse
	}
	f.count++
	if f.kinds == nil {
		f.kinds = map[string]int{}
	}
	f.kinds[kind]++
	if f.at == 0 || f.count != f.at {
		f.mu.Unlock()
		return goOn
	}
	f.blown, f.hit = true, kind
	v := refuse
	if f.mode.after() {
		v = loseAnswer
	}
	var call []func()
	if f.mode.crash() {
		call = f.onBlow
	}
	f.mu.Unlock()
	for _, fn := range call {
		fn()
	}
	return v
}

// dead reports whether a crash lets nothing through any more.
func (f *Fuse) dead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blown && f.mode.crash()
}

// through runs call as the fuse allows.
func (f *Fuse) through(kind string, call func() error) error {
	switch f.meet(kind) {
	case refuse:
		return Err
	case loseAnswer:
		if err := call(); err != nil {
			return err
		}
		return Err
	}
	return call()
}
