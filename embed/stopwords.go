package embed

import "strings"

// stopWords are the commonest words of English, and what an apostrophe leaves
// behind. A question is mostly made of them ("what is the address of the"), and
// without a corpus nothing else says that they tell nothing. Other languages
// have no list: there the length of a word has to do.
var stopWords = makeStopWords(`
a about after all also am an and any are as at be been before being but by can
could d did do does doing don done for from had has have having he her here hers
him his how i if in into is it its just ll m me more my no not of on or our ours
please re s she should so some such t than that the their them then there these
they this those to too up us ve very was we were what when where which while who
whom why will with would yes you your yours
`)

// longestStopWord bounds the conversion of a word to a string, which would
// otherwise be paid for every word.
const longestStopWord = 6

func makeStopWords(list string) map[string]struct{} {
	set := make(map[string]struct{})
	for word := range strings.FieldsSeq(list) {
		set[word] = struct{}{}
	}
	return set
}

func isStopWord(word []rune) bool {
	if len(word) > longestStopWord {
		return false
	}
	var buf [longestStopWord]byte
	for i, r := range word {
		if r > 'z' {
			return false
		}
		buf[i] = byte(r)
	}
	_, ok := stopWords[string(buf[:len(word)])]
	return ok
}
