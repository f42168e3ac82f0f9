package broker

// TurnOff has the server turn its store off, as it does where it may not write.
func (b *Broker) TurnOff() error { return b.server.ShutdownJetStream() }

// Say has the server log an error.
func (b *Broker) Say(format string, args ...any) { b.server.Errorf(format, args...) }
