package sessions

import "encoding/json"

// validJSON is json.Valid for what models write, which is mostly long strings:
// it leaves out what is plain inside them, where any byte but three kinds will
// do, and has json.Valid look at the rest.
func validJSON(text string) bool {
	rest := make([]byte, 0, 512)
	inside := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inside = !inside
		case inside && c == '\\':
			// With what follows: a quote ends nothing, and u wants four digits.
			n := min(len(text)-i, 2)
			if n == 2 && text[i+1] == 'u' {
				n = min(len(text)-i, 6)
			}
			rest = append(rest, text[i:i+n]...)
			i += n - 1
			continue
		case inside && c >= ' ':
			continue
		}
		rest = append(rest, text[i])
	}
	return json.Valid(rest)
}
