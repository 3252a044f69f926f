package canary

// CheckNames and Reasons are all words that a check of this package can have.
func CheckNames() []string {
	names := []string{
		CheckUnique, CheckShared, CheckVectors, CheckFence, CheckOldEpochs, CheckVersions, CheckDerivation, CheckLedger,
		CheckNeighbour, CheckInstances, CheckLogs, CheckResidue,
	}
	for _, e := range []exam{{}, {Content: true}, {Whole: true}} {
		for _, c := range e.counts() {
			names = append(names, c.name)
		}
	}
	return names
}

// Reasons are those of a check that is no pass.
func Reasons() []string {
	return []string{
		reasonNothing, reasonNoControl, reasonNoUnique, reasonNoProbes, reasonNoVectors, reasonNoNeighbour, reasonNotMeant, reasonNotSet,
		reasonNoRight, reasonUnavailable, reasonKMS, reasonLedger, reasonBudget, reasonRows, reasonElsewhere, reasonSharedHits, reasonResidue,
		reasonUsable, reasonDerives, reasonHarmed, reasonNotDropped, reasonLogHit, reasonNotFenced, reasonPolicy, reasonIncomplete,
	}
}

// Words returns the words of a text, as a search sees them.
func Words(text string) []string {
	var out []string
	eachWord([]byte(text), func(w word) { out = append(out, string(w.text)) })
	return out
}

// Telling returns the words that become probes of a text.
func Telling(text string, n int) []string {
	top := best{limit: n}
	eachWord([]byte(text), top.offer)
	out := make([]string, len(top.words))
	for i, w := range top.words {
		out[i] = string(w.text)
	}
	return out
}

// JSONTexts returns the texts of a JSON value.
func JSONTexts(value string) []string {
	var out []string
	for _, t := range jsonTexts([]byte(value)) {
		out = append(out, string(t))
	}
	return out
}
