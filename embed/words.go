package embed

// Words calls each with a hash of every word of a text, in their order, as the lexical
// embedder knows words: without case, accents and punctuation; characters of scripts
// without spaces one by one and in pairs. Equal words have equal hashes, in every
// process, so hashes of words are as personal as the words.
func Words(text string, each func(hash uint64)) {
	var s scratch
	s.runes = joinThousands(fold(s.runes, text))
	for _, t := range tokenise(nil, s.runes) {
		word := s.runes[t.from:t.to]
		if t.kind != tokenRun {
			each(hashRunes(featureWord, word))
			continue
		}
		for i := range word {
			each(hashRunes(featureSingle, word[i:i+1]))
			if i+2 <= len(word) {
				each(hashRunes(featureGram, word[i:i+2]))
			}
		}
	}
}
