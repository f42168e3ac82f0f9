package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// providerPrefix stands before a provider's name in the subjects on CONTROL that
// say which providers this installation has ever had.
const providerPrefix = "control.provider-"

// RememberProvider keeps a provider's name for ever. Operations outlive the
// configuration they were submitted under, and somebody has to attend to them.
func (j *Journal) RememberProvider(ctx context.Context, provider string) error {
	if err := checkName("provider", provider); err != nil {
		return err
	}
	subject := providerPrefix + provider
	if _, err := j.store.Last(ctx, Control, subject); err == nil {
		return nil
	} else if !errors.Is(err, ErrNoMessage) {
		return fmt.Errorf("remember provider %s: %w", provider, err)
	}
	_, _, err := j.place(ctx, Control, subject, 0,
		func() (uint64, error) {
			return j.store.Publish(ctx, Control, Outgoing{Subject: subject, Data: []byte(provider), Guard: &Guard{}})
		},
		func(Message) bool { return true }) // whoever wrote it wrote the same
	if err != nil {
		return fmt.Errorf("remember provider %s: %w", provider, err)
	}
	return nil
}

// Providers lists every provider that was ever remembered.
func (j *Journal) Providers(ctx context.Context) ([]string, error) {
	var list []string
	err := j.each(ctx, Control, "control.*", func(m Message) error {
		if name, ok := strings.CutPrefix(m.Subject, providerPrefix); ok {
			list = append(list, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list providers: %w", err)
	}
	return list, nil
}
