package workloadapi

import "time"

// Hurry has the source lose no time. most bounds how long an agent may stay silent.
func (cfg *Config) Hurry(most time.Duration) {
	cfg.pace = pace{answer: most, first: time.Millisecond, most: 10 * time.Millisecond, again: 10 * time.Millisecond}
}
