package purge

import (
	"bytes"
	"encoding/json"
	"strconv"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// refLength is the length of a memd.Ref as logs have it.
const refLength = 16

// span is a part of a line, from a first byte to before a last one.
type span struct{ from, to int }

// matcher finds the lines of a subject. It works on the bytes of a line and not
// on what it means, so that it finds as much in what an interrupted erase left.
type matcher struct {
	// refs are the digests, as logs have them, any of which makes a line the
	// subject's.
	refs map[string]bool
	// request is the erasure's id. Lines that name it are about the erasure, not
	// about what the subject did, and would make every erasure find itself.
	request []byte

	fields             LogFields
	app, user, session string
	// plain: the ids in clear are looked for too.
	plain bool
}

func newMatcher(k *shred.Keys, t Target, r Request) *matcher {
	m := &matcher{
		refs: map[string]bool{}, request: []byte(r.ID.String()), fields: t.Fields,
		app: r.App, user: r.UserID, session: r.SessionID,
	}
	for _, ref := range r.Refs {
		m.refs[ref.String()] = true
	}
	user := k.UserRef(r.App, r.UserID)
	switch {
	case r.Mode == ModeUser:
		m.refs[user.String()] = true
		m.plain = t.Fields.User != ""
	case r.Mode.Sessions():
		m.refs[k.SessionRef(user, r.SessionID).String()] = true
		m.plain = t.Fields.User != "" && t.Fields.Session != ""
	}
	delete(m.refs, memd.Ref{}.String())
	return m
}

// match returns what makes the line the subject's, or nil.
func (m *matcher) match(line []byte) []span {
	found := m.digests(line)
	if m.plain {
		found = append(found, m.ids(line)...)
	}
	if len(found) == 0 || bytes.Contains(line, m.request) {
		return nil
	}
	return found
}

// digests finds runs of letters and digits that are one of the digests.
func (m *matcher) digests(line []byte) []span {
	var found []span
	for i := 0; i < len(line); {
		j := i
		for j < len(line) && alphanumeric(line[j]) {
			j++
		}
		if j-i == refLength && m.refs[string(line[i:j])] {
			found = append(found, span{i, j})
		}
		i = j + 1
	}
	return found
}

// ids finds the ids in clear. The user's must be there; the session's too when
// the erasure is about one; the app's must not be another.
func (m *matcher) ids(line []byte) []span {
	users, _ := values(line, m.fields.User, m.user)
	if len(users) == 0 {
		return nil
	}
	if m.session != "" {
		sessions, _ := values(line, m.fields.Session, m.session)
		if len(sessions) == 0 {
			return nil
		}
		users = append(users, sessions...)
	}
	if m.fields.App != "" {
		apps, named := values(line, m.fields.App, m.app)
		if named && len(apps) == 0 {
			return nil
		}
		users = append(users, apps...)
	}
	return users
}

// values finds where a field has the value, as "field": "value" or field=value,
// and reports whether it is there with any. A span covers field and value.
func values(line []byte, field, value string) (found []span, named bool) {
	name := []byte(field)
	for at := 0; ; {
		i := bytes.Index(line[at:], name)
		if i < 0 {
			return found, named
		}
		from := at + i
		at = from + 1
		start, end, ok := valueOf(line, from, from+len(name))
		if !ok {
			continue
		}
		named = true
		if same(line[start:end], value) {
			if from > 0 && line[from-1] == '"' {
				from--
			}
			found = append(found, span{from, end})
		}
		at = end
	}
}

// valueOf returns where the value of the name at [from, to) stands.
func valueOf(line []byte, from, to int) (start, end int, ok bool) {
	quoted := from > 0 && to < len(line) && line[from-1] == '"' && line[to] == '"'
	switch {
	case quoted:
		to = blanks(line, to+1)
		if to >= len(line) || line[to] != ':' {
			return 0, 0, false
		}
		to = blanks(line, to+1)
	case to < len(line) && line[to] == '=' && (from == 0 || !nameByte(line[from-1])):
		to++
	default:
		return 0, 0, false
	}
	if to < len(line) && line[to] == '"' {
		for end = to + 1; end < len(line); end++ {
			switch line[end] {
			case '\\':
				end++
			case '"':
				return to, end + 1, true
			}
		}
		return 0, 0, false // A string without an end.
	}
	for end = to; end < len(line) && !bytes.ContainsRune([]byte(" \t\r,;}])"), rune(line[end])); end++ {
	}
	return to, end, true
}

// same compares what is written with a value: a string of JSON or of Go, which
// is how key=value logs quote, or bare.
func same(written []byte, value string) bool {
	if len(written) == 0 || written[0] != '"' {
		return string(written) == value
	}
	var text string
	if json.Unmarshal(written, &text) == nil {
		return text == value
	}
	text, err := strconv.Unquote(string(written))
	return err == nil && text == value
}

func blanks(line []byte, i int) int {
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	return i
}

func alphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func nameByte(b byte) bool { return alphanumeric(b) || b == '_' || b == '.' || b == '-' }
