package scheduler

// States returns all states, in the order of a machine's life.
func States() []State {
	return []State{Speculative, Creating, Idle, Configuring, Configured, Draining, Deleting, Failed}
}
