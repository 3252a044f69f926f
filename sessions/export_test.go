package sessions

// For tests of what has no other way in.
var ValidJSON = validJSON
