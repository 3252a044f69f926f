package embed

import (
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// tokenKind says how a token is cut into features.
type tokenKind uint8

const (
	tokenUnknown tokenKind = iota
	tokenWord              // letters, with spaces around them
	tokenNumber            // has a digit: house numbers, telephone numbers, codes
	tokenRun               // a script written without spaces
	tokenSymbol            // one symbol, such as an emoji
)

// token is a piece of the scratch's runes.
type token struct {
	from, to int
	kind     tokenKind
}

// fold writes the normal form of text into dst: compatibility-normalised (full
// width, ligatures), case-folded and without the accents of European scripts,
// so that "Zoë" is found for "zoe". Vowel signs of other scripts stay: without
// them different words would be one.
func fold(dst []rune, text string) []rune {
	if isASCII(text) {
		for i := range len(text) {
			c := text[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			dst = append(dst, rune(c))
		}
		return dst
	}
	// A Caser may not be shared between goroutines, and making one is cheap
	// beside normalising.
	bare := make([]byte, 0, len(text))
	for _, r := range norm.NFKD.String(cases.Fold().String(text)) {
		if r < 0x0300 || r > 0x036F { // the block of combining accents
			bare = utf8.AppendRune(bare, r)
		}
	}
	for _, r := range string(norm.NFC.Bytes(bare)) {
		dst = append(dst, r)
	}
	return dst
}

// joinThousands removes commas between digits, in place, so that "3,250" and
// "3250" are the same number.
func joinThousands(text []rune) []rune {
	out := text[:0]
	var before rune
	for i, r := range text {
		if r == ',' && isDigit(before) && i+1 < len(text) && isDigit(text[i+1]) {
			before = r
			continue
		}
		out = append(out, r)
		before = r
	}
	return out
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// tokenise appends the tokens of folded text.
func tokenise(dst []token, text []rune) []token {
	for i := 0; i < len(text); {
		kind := kindOf(text[i])
		if kind == tokenUnknown {
			i++
			continue
		}
		t := token{from: i, to: i + 1, kind: kind}
		for kind != tokenSymbol && t.to < len(text) {
			next := kindOf(text[t.to])
			if next == tokenUnknown || next == tokenSymbol || (next == tokenRun) != (kind == tokenRun) {
				break
			}
			if next == tokenNumber {
				t.kind = tokenNumber
			}
			t.to++
		}
		dst = append(dst, t)
		i = t.to
	}
	return dst
}

func kindOf(r rune) tokenKind {
	switch {
	case 'a' <= r && r <= 'z':
		return tokenWord
	case '0' <= r && r <= '9':
		return tokenNumber
	case r < utf8.RuneSelf:
		return tokenUnknown
	case r >= 0x0E00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana,
		unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar):
		return tokenRun
	case unicode.IsLetter(r), unicode.IsMark(r):
		return tokenWord
	case unicode.IsDigit(r):
		return tokenNumber
	case unicode.Is(unicode.So, r):
		return tokenSymbol
	}
	return tokenUnknown
}
