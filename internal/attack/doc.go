// Package attack holds the long tests that try to break a whole memd: load with
// erasures while the database is killed and the key service is away. It has no
// code of its own. In go test the attacks are short; MEMD_ATTACK, in minutes,
// makes them long, and MEMD_SEED repeats one (make attack).
package attack
