package embed

import (
	"cmp"
	"math"
	"slices"
)

// Weights of the features. There is no corpus to count documents in, so how
// telling a word is has to be guessed from the word: digits tell most, long
// words more than short ones, and the commonest words of English next to
// nothing. The figures were set by hand on the sentences of the tests.
const (
	weightNumber = 1.5
	weightStop   = 0.1
	weightPair   = 0.5 // of two neighbouring words, beside their mean
	weightGrams  = 1.0 // of all n-grams of a word together, beside the word
	weightSingle = 0.4 // of one character of a script without spaces
)

// Kinds of features, hashed into each so that a word never meets an n-gram by
// being spelt like it. Numbers are stored vectors' format: append only.
const (
	featureWord   = 1
	featurePair   = 2
	featureGram   = 3
	featureSingle = 4
)

// Marks of a word's ends inside n-grams.
const (
	wordStart = '\x02'
	wordEnd   = '\x03'
)

// feature is a hashed piece of spelling and how often and how strongly it
// occurred.
type feature struct {
	hash   uint64
	weight float64
}

// scratch is the working memory of one text.
type scratch struct {
	runes    []rune
	tokens   []token
	features []feature
	padded   []rune
}

// extract leaves the distinct features of text in s.features, sorted by hash.
// It leaves none only when the text has no visible character.
func (s *scratch) extract(text string) {
	s.runes = joinThousands(fold(s.runes[:0], text))
	s.tokens = tokenise(s.tokens[:0], s.runes)
	s.features = s.features[:0]

	var before uint64
	var beforeWeight float64
	for _, t := range s.tokens {
		word := s.runes[t.from:t.to]
		if t.kind == tokenRun {
			s.addRun(word)
			before, beforeWeight = 0, 0
			continue
		}
		hash, weight := hashRunes(featureWord, word), weightOf(word, t.kind)
		s.add(hash, weight)
		if before != 0 && max(beforeWeight, weight) > weightStop {
			s.add(mix(before^mix(hash^featurePair)), weightPair*math.Sqrt(beforeWeight*weight))
		}
		before, beforeWeight = hash, weight
		if t.kind != tokenSymbol && weight > weightStop {
			s.addGrams(word, weight)
		}
	}
	if len(s.features) == 0 {
		s.addPunctuation()
	}
	s.merge()
}

func (s *scratch) add(hash uint64, weight float64) {
	s.features = append(s.features, feature{hash: hash, weight: weight})
}

// addGrams adds the trigrams and tetragrams of a word with its ends marked,
// which is how a misspelt or inflected word is still found. Together they weigh
// the same for a long word as for a short one.
func (s *scratch) addGrams(word []rune, weight float64) {
	s.padded = append(s.padded[:0], wordStart)
	s.padded = append(s.padded, word...)
	s.padded = append(s.padded, wordEnd)
	n := max(len(s.padded)-2, 0) + max(len(s.padded)-3, 0)
	if len(word) < 3 || n == 0 {
		return // the n-grams of a short word are the word
	}
	each := weightGrams * weight / math.Sqrt(float64(n))
	for size := 3; size <= 4; size++ {
		for i := 0; i+size <= len(s.padded); i++ {
			s.add(hashRunes(featureGram, s.padded[i:i+size]), each)
		}
	}
}

// addRun adds single characters and pairs of a script without spaces, where
// two characters are about a word.
func (s *scratch) addRun(run []rune) {
	for i := range run {
		s.add(hashRunes(featureSingle, run[i:i+1]), weightSingle)
		if i+2 <= len(run) {
			s.add(hashRunes(featureGram, run[i:i+2]), 1)
		}
	}
}

// addPunctuation gives a text without any token, such as "?!", a direction of
// its own.
func (s *scratch) addPunctuation() {
	for i, r := range s.runes {
		if r > ' ' {
			s.add(hashRunes(featureSingle, s.runes[i:i+1]), weightSingle)
		}
	}
}

// merge makes equal features one, weighing n occurrences 1+ln n times one.
func (s *scratch) merge() {
	slices.SortFunc(s.features, func(a, b feature) int {
		if c := cmp.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		return cmp.Compare(b.weight, a.weight) // the strongest first
	})
	out := s.features[:0]
	for i := 0; i < len(s.features); {
		j := i + 1
		for j < len(s.features) && s.features[j].hash == s.features[i].hash {
			j++
		}
		f := s.features[i]
		if n := j - i; n > 1 {
			f.weight *= 1 + math.Log(float64(n))
		}
		out = append(out, f)
		i = j
	}
	s.features = out
}

func weightOf(word []rune, kind tokenKind) float64 {
	switch {
	case kind == tokenSymbol:
		return 0.5
	case kind == tokenNumber && len(word) > 2:
		return weightNumber
	case kind == tokenNumber:
		return 1
	case isStopWord(word):
		return weightStop
	}
	return min(0.4+0.12*float64(len(word)), 1.2)
}

// hashRunes is FNV-1a over the runes, mixed. It is spelt out here because
// stored vectors depend on every bit of it.
func hashRunes(kind uint64, runes []rune) uint64 {
	h := uint64(14695981039346656037) ^ kind
	h *= 1099511628211
	for _, r := range runes {
		h ^= uint64(uint32(r))
		h *= 1099511628211
	}
	return mix(h)
}

// mix is the finaliser of MurmurHash3: every input bit reaches every output
// bit, which FNV alone does not do for its low bits.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
