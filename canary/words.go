package canary

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Bounds of a word. Shorter ones are everybody's, and of a longer one its
// beginning is as telling.
const (
	minWord   = 4
	maxWord   = 64
	minLetter = 5 // of a word without a digit
	// strongWord is the length from which a word without a digit is telling all
	// by itself; strongMixed how many digits one with letters needs for that, and
	// strongNumber one without. manyWords is how many others are together.
	strongWord   = 16
	strongMixed  = 3
	strongNumber = 9
	manyWords    = 3
)

// hash stands for a word under a job's key. A prefix MAC: key and word fit one
// block of SHA-256 as a rule, which makes it several times as fast as HMAC, and
// of the digest half is kept, so that nothing can be appended to it.
type hash [16]byte

func hashWord(key *[32]byte, word []byte) hash {
	var b [32 + maxWord]byte
	copy(b[:], key[:])
	n := copy(b[32:], word)
	sum := sha256.Sum256(b[:32+n])
	return hash(sum[:16])
}

// word is one word of a text, in lower case. The slice is only valid during the
// call that gives it.
type word struct {
	text         []byte
	upper, digit bool // it began with a capital; it has a digit
}

// eachWord calls f with every word of a text: runs of letters and digits, and
// such runs joined by one of "-_.@+:/", whole and in parts. Text in scripts
// without spaces gives its trigrams.
func eachWord(text []byte, f func(w word)) {
	if !ascii(text) {
		text = norm.NFKC.Bytes(text)
	}
	var low [maxWord]byte
	emit := func(raw []byte) {
		if len(raw) < minWord {
			return
		}
		w, n := word{}, 0
		for i := 0; i < len(raw) && n <= maxWord-utf8.UTFMax; {
			c := raw[i]
			switch class := classes[c]; {
			case class == lower:
				low[n] = c
			case class == capital:
				w.upper = w.upper || i == 0
				low[n] = c | 0x20
			case class == digit:
				w.digit = true
				low[n] = c
			case c < utf8.RuneSelf:
				low[n] = c
			default:
				r, size := utf8.DecodeRune(raw[i:])
				w.upper = w.upper || i == 0 && unicode.IsUpper(r)
				w.digit = w.digit || unicode.IsDigit(r)
				n += utf8.EncodeRune(low[n:], unicode.ToLower(r))
				i += size
				continue
			}
			n++
			i++
		}
		w.text = low[:n]
		f(w)
	}
	part, whole := 0, 0 // where the part and the joined word began
	joined := false     // the word has more than one part
	end := func(at int) {
		emit(text[part:at])
		if joined {
			emit(text[whole:at])
		}
		joined = false
	}
	inside := false
	for i := 0; i < len(text); {
		class, n := classes[text[i]], 1
		if class == wide {
			var r rune
			r, n = utf8.DecodeRune(text[i:])
			switch {
			case spaceless(r):
				if inside {
					end(i)
					inside = false
				}
				if stop := trigram(text[i:]); stop > 0 {
					emit(text[i : i+stop])
				}
				i += n
				continue
			case alphanumeric(r):
				class = lower
			default:
				class = other
			}
		}
		switch {
		case class <= digit:
			if !inside {
				part, whole, inside = i, i, true
			}
		case !inside:
		case class == joiner && i+1 < len(text) && startsWord(text[i+1:]):
			emit(text[part:i])
			part, joined = i+1, true
		default:
			end(i)
			inside = false
		}
		i += n
	}
	if inside {
		end(len(text))
	}
}

// classes of bytes; those up to digit are part of a word.
const (
	lower = iota
	capital
	digit
	joiner
	other
	wide // part of a character beyond ASCII
)

var classes = func() (t [256]byte) {
	for c := range t {
		switch {
		case c >= utf8.RuneSelf:
			t[c] = wide
		case 'a' <= c && c <= 'z':
			t[c] = lower
		case 'A' <= c && c <= 'Z':
			t[c] = capital
		case '0' <= c && c <= '9':
			t[c] = digit
		case strings.IndexByte("-_.@+:/", byte(c)) >= 0:
			t[c] = joiner
		default:
			t[c] = other
		}
	}
	return t
}()

func ascii(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func alphanumeric(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)
}

func startsWord(b []byte) bool {
	r, _ := utf8.DecodeRune(b)
	return alphanumeric(r) && !spaceless(r)
}

// spaceless reports scripts that do not put spaces between words.
func spaceless(r rune) bool {
	return r >= 0x0e00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// trigram returns the length of the three characters that b begins with, or 0.
func trigram(b []byte) int {
	at := 0
	for range 3 {
		r, n := utf8.DecodeRune(b[at:])
		if !spaceless(r) {
			return 0
		}
		at += n
	}
	return at
}

// telling rates a word as a probe: 0 is none. Words with a digit come first
// (numbers of houses, phones and orders), then what is written with a capital,
// then the longest.
func (w word) telling() int {
	switch n := utf8.RuneCount(w.text); {
	case w.digit:
		return 200 + n
	case n < minLetter && !spacelessWord(w.text), commonWord(w.text):
		return 0
	case w.upper:
		return 100 + n
	default:
		return n
	}
}

// strong reports whether one hit of the word is evidence by itself: the number
// of an order or a phone, an address of mail. A date, a time, a price or the
// number of a house is not: anybody may name the same one within the hour.
func (w word) strong() bool {
	digits, letters := 0, 0
	for _, r := range string(w.text) {
		switch {
		case unicode.IsDigit(r):
			digits++
		case unicode.IsLetter(r):
			letters++
		}
	}
	switch {
	case digits == 0:
		return utf8.RuneCount(w.text) >= strongWord
	case letters == 0:
		return digits >= strongNumber
	default:
		return digits >= strongMixed
	}
}

func spacelessWord(word []byte) bool {
	r, _ := utf8.DecodeRune(word)
	return spaceless(r)
}

// common words of the languages that texts are most often in, as long as they
// could pass for telling. Rare ones sort themselves out: whatever somebody else
// said before is no unique probe.
var common = strings.Fields(`
about above after again against almost along already although always among another answer anything around asked
because become before began being below better between beyond called cannot change check could customer different
doing during early either email enough every everything example family first follow found friday general getting
going great group having hello house however important information inside instead known large later learn least
leave letter little looking longer makes making maybe means message might monday money month morning never night
nothing number often order other others people perhaps phone place please point possible problem question quite
rather really reason remember right saturday second seems several should since small social something sometimes
still street sunday system thank thanks their there these thing things think those three through thursday today
together tomorrow tonight toward tuesday under until using usually wanted watch water wednesday weeks where whether
which while within without woman women words working world would write years yesterday young yours agent assistant
content function model parts response result string summary system value
aber alles andere auch dann dass deine dieser durch einen einer etwas ganze haben heute ihnen immer jetzt keine
kommt konnte machen meine morgen nicht nichts nochmal schon sehr seine sollte werden wieder wurde zwischen
alors aussi autre avant avec avoir beaucoup cette comme dans depuis encore entre faire jamais leurs maintenant
moins notre nous peut plus pour pourquoi quand quelque sans tous toujours votre vous
ahora antes aunque bien cada como cuando desde donde ella entonces esta este hacer hasta menos mientras mucho
nada nosotros nunca otra para pero poco porque puede siempre sobre tambien tiene todo todos usted
`)

var commonSet = func() map[string]bool {
	set := make(map[string]bool, len(common))
	for _, w := range common {
		set[w] = true
	}
	return set
}()

func commonWord(word []byte) bool { return commonSet[string(word)] }

// best keeps the most telling words of one row.
type best struct {
	words []rated
	limit int
}

type rated struct {
	word
	rating int
}

func (t *best) offer(w word) {
	// Most words are no better than what is kept, and cost no more than this.
	least := 0
	if len(t.words) == t.limit {
		least = t.words[len(t.words)-1].rating
	}
	if least >= 200 && (!w.digit || 200+len(w.text) <= least) {
		return
	}
	r := w.telling()
	if r == 0 || r <= least {
		return
	}
	for i := range t.words {
		if bytes.Equal(t.words[i].text, w.text) {
			return
		}
	}
	if len(t.words) == t.limit {
		t.words = t.words[:t.limit-1]
	}
	w.text = bytes.Clone(w.text)
	t.words = append(t.words, rated{w, r})
	slices.SortStableFunc(t.words, func(a, b rated) int { return b.rating - a.rating })
}

// filter says quickly of most words that they are none of those in it. It is
// keyed like the hashes, and kept with them: at the second look nobody knows the
// words any more from which it could be made.
type filter [1 << 14]byte

func (f *filter) slot(key *[32]byte, text []byte) (at uint32, bit byte) {
	h := binary.LittleEndian.Uint64(key[:]) | 1
	for _, c := range text {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	h >>= 64 - 17
	return uint32(h >> 3), 1 << (h & 7)
}

func (f *filter) add(key *[32]byte, text []byte) {
	at, bit := f.slot(key, text)
	f[at] |= bit
}

func (f *filter) has(key *[32]byte, text []byte) bool {
	at, bit := f.slot(key, text)
	return f[at]&bit != 0
}
