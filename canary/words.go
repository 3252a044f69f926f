package canary

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
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
	// by itself, and manyWords how many others are together.
	strongWord = 16
	manyWords  = 3
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

// eachWord calls f with every word of a text, in lower case: runs of letters and
// digits, and such runs joined by one of "-_.@+:/", whole and in parts. Text in
// scripts without spaces gives its trigrams. The slice is only valid during the
// call; upper says whether the word began with a capital.
func eachWord(text []byte, f func(word []byte, upper bool)) {
	if !ascii(text) {
		text = norm.NFKC.Bytes(text)
	}
	low := make([]byte, 0, maxWord)
	emit := func(raw []byte) {
		if len(raw) < minWord {
			return
		}
		first, _ := utf8.DecodeRune(raw)
		low = low[:0]
		for len(raw) > 0 && len(low) < maxWord-utf8.UTFMax {
			r, n := utf8.DecodeRune(raw)
			low = utf8.AppendRune(low, unicode.ToLower(r))
			raw = raw[n:]
		}
		f(low, unicode.IsUpper(first))
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
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(text[i:])
		}
		switch {
		case spaceless(r):
			if inside {
				end(i)
				inside = false
			}
			if stop := trigram(text[i:]); stop > 0 {
				emit(text[i : i+stop])
			}
		case alphanumeric(r):
			if !inside {
				part, whole, inside = i, i, true
			}
		case inside && strings.IndexByte("-_.@+:/", text[i]) >= 0 && i+1 < len(text) && startsWord(text[i+1:]):
			emit(text[part:i])
			part, joined = i+1, true
		case inside:
			end(i)
			inside = false
		}
		i += n
	}
	if inside {
		end(len(text))
	}
}

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
func telling(word []byte, upper bool) int {
	digit := bytes.ContainsAny(word, "0123456789")
	switch n := utf8.RuneCount(word); {
	case digit:
		return 200 + n
	case n < minLetter && !spacelessWord(word), commonWord(word):
		return 0
	case upper:
		return 100 + n
	default:
		return n
	}
}

// strong reports whether one hit of the word is evidence by itself.
func strong(word []byte) bool {
	return bytes.ContainsAny(word, "0123456789") || utf8.RuneCount(word) >= strongWord
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

// eachText splits what memd seals as a list of texts, each behind its length as
// a uvarint. It reports false when b is no such list.
func eachText(b []byte, f func(text []byte)) bool {
	for len(b) > 0 {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return false
		}
		f(b[used : used+int(n)])
		b = b[used+int(n):]
	}
	return true
}

// jsonTexts returns the strings and numbers of a JSON value without their escapes, and not the names of
// its fields, which are the program's. What is no JSON is returned as it is.
func jsonTexts(b []byte) [][]byte {
	if len(b) == 0 || b[0] != '{' && b[0] != '[' && b[0] != '"' {
		return [][]byte{b}
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return [][]byte{b}
	}
	var out [][]byte
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			out = append(out, []byte(v))
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		case json.Number:
			out = append(out, []byte(v))
		}
	}
	walk(v)
	return out
}

// readable reports whether bytes are text: no NUL, and valid UTF-8 but for a
// character cut at either end.
func readable(b []byte) bool {
	if bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	for range utf8.UTFMax {
		if len(b) > 0 && !utf8.RuneStart(b[0]) {
			b = b[1:]
		}
	}
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				b = b[:len(b)-i]
			}
			break
		}
	}
	return utf8.Valid(b)
}

// best keeps the most telling words of one text.
type best struct {
	words []rated
	limit int
}

type rated struct {
	word   []byte
	rating int
}

func (t *best) offer(word []byte, upper bool) {
	r := telling(word, upper)
	if r == 0 || len(t.words) == t.limit && r <= t.words[len(t.words)-1].rating {
		return
	}
	for i := range t.words {
		if bytes.Equal(t.words[i].word, word) {
			return
		}
	}
	if len(t.words) == t.limit {
		t.words = t.words[:t.limit-1]
	}
	t.words = append(t.words, rated{bytes.Clone(word), r})
	slices.SortStableFunc(t.words, func(a, b rated) int { return b.rating - a.rating })
}
