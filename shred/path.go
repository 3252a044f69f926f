package shred

import (
	"math/bits"

	"forgettable.dev/memd"
)

// Path names a node of a tenant's key tree: a string of the bytes '0' and '1',
// one for each step down from the root. The constructors below build every
// path that there is; an argument that is not a valid number, class or month
// gives the empty path, which every function of this package refuses.
//
// Numbers are in Elias gamma code, so no leaf's path is a prefix of another's,
// and small numbers (the many) are short. A subject's path is a prefix of the
// paths of its sessions, and of nothing else.
type Path string

// maxPathBits is the length of the longest path: a session of a subject, each
// with the largest generation and the largest counter.
const maxPathBits = 1 + maxNumberBits + 1 + maxNumberBits

// maxNumberBits is γ(MaxGeneration) and γ(MaxCounter), 22 and 40 bits long.
const maxNumberBits = (2*22 - 1) + (2*40 - 1)

// Branches below the root. '0' is short because subjects are the many.
const (
	branchSubject = "0"
	branchMonth   = "10"
	branchJob     = "11"
)

// SubjectPath is the node above everything of a subject: puncturing it erases
// the subject. It is an inner node, so no key is taken from it.
func SubjectPath(subject memd.Number) Path {
	if !subject.Valid() {
		return ""
	}
	b := make([]byte, 0, 64)
	b = append(b, branchSubject...)
	return Path(appendNumber(b, subject))
}

// SessionPath is the leaf of one class of one session of a subject. The
// subject's own scope is the session memd.OwnScope.
func SessionPath(subject memd.Number, c memd.Class, session memd.Number) Path {
	if !subject.Valid() || !session.Valid() || !validClass(c) {
		return ""
	}
	b := make([]byte, 0, 128)
	b = append(b, branchSubject...)
	b = appendNumber(b, subject)
	b = append(b, '0'+byte(c))
	return Path(appendNumber(b, session))
}

// MonthPath is the leaf of one class of one month. Puncturing it expires the
// month for everybody of the tenant.
func MonthPath(c memd.Class, m memd.Month) Path {
	if m < 1 || !validClass(c) {
		return ""
	}
	b := make([]byte, 0, 64)
	b = append(b, branchMonth...)
	b = append(b, '0'+byte(c))
	return Path(appendGamma(b, uint64(m)))
}

// JobPath is the leaf of an erasure job: what it must remember while it runs
// is sealed under it.
func JobPath(job memd.Number) Path {
	if !job.Valid() {
		return ""
	}
	b := make([]byte, 0, 64)
	b = append(b, branchJob...)
	return Path(appendNumber(b, job))
}

// ParsePath reads a stored path. It refuses whatever the constructors would
// not build, so that a damaged row can never puncture half a tree. The error
// is a memd.ErrCorrupt.
func ParsePath(s string) (Path, error) {
	if p := Path(s); p.Valid() {
		return p, nil
	}
	return "", corrupt("path is not one of the key tree's")
}

// Valid reports whether p is a subject's, session's, month's or job's path.
func (p Path) Valid() bool {
	_, ok := p.leaf()
	return ok
}

// Leaf reports whether p is valid and a leaf. Keys are taken from leaves only:
// an inner node's key would be lost as soon as a puncture below split it.
func (p Path) Leaf() bool {
	leaf, ok := p.leaf()
	return leaf && ok
}

// leaf parses p by the grammar of the three branches.
func (p Path) leaf() (leaf, ok bool) {
	if len(p) < 3 || len(p) > maxPathBits {
		return false, false
	}
	rest := p
	switch {
	case rest[0] == '0':
		rest, ok = cutNumber(rest[len(branchSubject):])
		if !ok || rest == "" {
			return false, ok
		}
		if !isBit(rest[0]) {
			return false, false
		}
		rest, ok = cutNumber(rest[1:])
	case rest[:2] == branchMonth:
		if !isBit(rest[2]) {
			return false, false
		}
		var m uint64
		m, rest, ok = cutGamma(rest[3:])
		ok = ok && m < 1<<31
	case rest[:2] == branchJob:
		rest, ok = cutNumber(rest[2:])
	}
	return true, ok && rest == ""
}

func validClass(c memd.Class) bool { return c == memd.ClassContent || c == memd.ClassMemory }

func isBit(b byte) bool { return b == '0' || b == '1' }

func appendNumber(b []byte, n memd.Number) []byte {
	b = appendGamma(b, uint64(n.Generation()))
	return appendGamma(b, uint64(n.Counter()))
}

// appendGamma appends n ≥ 1 in Elias gamma code: as many zeros as n has bits
// after its first, then n in binary.
func appendGamma(b []byte, n uint64) []byte {
	length := bits.Len64(n)
	for range length - 1 {
		b = append(b, '0')
	}
	for i := length - 1; i >= 0; i-- {
		b = append(b, '0'+byte(n>>i&1))
	}
	return b
}

func cutNumber(p Path) (Path, bool) {
	generation, p, ok := cutGamma(p)
	if !ok {
		return "", false
	}
	counter, p, ok := cutGamma(p)
	if !ok {
		return "", false
	}
	_, err := memd.NewNumber(int64(generation), int64(counter))
	return p, err == nil
}

// cutGamma reads one gamma code. Gamma codes have one spelling for each
// number, so nothing has to be checked for being canonical.
func cutGamma(p Path) (n uint64, rest Path, ok bool) {
	zeros := 0
	for zeros < len(p) && p[zeros] == '0' {
		zeros++
	}
	end := 2*zeros + 1
	if zeros > 62 || end > len(p) {
		return 0, "", false
	}
	for _, c := range []byte(p[zeros:end]) {
		if !isBit(c) {
			return 0, "", false
		}
		n = n<<1 | uint64(c-'0')
	}
	return n, p[end:], true
}
