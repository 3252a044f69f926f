package canary

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"unicode/utf8"
)

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

// jsonTexts returns the strings and numbers of a JSON value, strings without
// their escapes, and not the names of fields, which are the program's. What has
// none is returned as it is. It does not parse: it looks for literals, since most
// of what an erasure searches through is JSON.
func jsonTexts(b []byte) [][]byte {
	if len(b) == 0 || b[0] != '{' && b[0] != '[' && b[0] != '"' {
		return [][]byte{b}
	}
	var out [][]byte
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			end, escaped := closing(b, i+1)
			if end < 0 {
				return append(out, b[i:])
			}
			literal := b[i : end+1]
			i = end + 1
			if next := bytes.TrimLeft(b[i:min(len(b), i+16)], " \t\r\n"); len(next) > 0 && next[0] == ':' {
				continue
			}
			text := literal[1 : len(literal)-1]
			if escaped {
				var s string
				if json.Unmarshal(literal, &s) == nil {
					text = []byte(s)
				}
			}
			out = append(out, text)
		case classes[c] == digit:
			from := i
			for i < len(b) && (classes[b[i]] == digit || b[i] == '.') {
				i++
			}
			out = append(out, b[from:i])
		default:
			i++
		}
	}
	if len(out) == 0 {
		return [][]byte{b}
	}
	return out
}

// closing returns where the string that begins at i ends, and whether it has
// escapes, or -1.
func closing(b []byte, i int) (end int, escaped bool) {
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i, escaped
		case '\\':
			escaped = true
			i++
		}
	}
	return -1, escaped
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
