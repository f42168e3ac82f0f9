package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

func (m *Mount) retention() time.Duration {
	if m.options.Retention > 0 {
		return m.options.Retention
	}
	return time.Hour
}

// link is a result link signed for a limited time.
func (c *call) link(j *job) string {
	m := c.mount
	var until time.Time
	if m.dialect == Replicate {
		until = j.updated().Add(m.retention())
	}
	if ttl := m.options.LinkTTL; ttl > 0 {
		if end := c.sim.now().Add(ttl); until.IsZero() || end.Before(until) {
			until = end
		}
	}
	if until.IsZero() {
		until = c.sim.now().Add(time.Hour)
	}
	origin := c.origin
	if m.options.LinkBase != "" {
		origin = m.options.LinkBase
	}
	expires := strconv.FormatInt(until.UnixNano(), 10)
	return fmt.Sprintf("%s%s/v1/files/%s/out-0?expires=%s&signature=%s",
		origin, m.base, url.PathEscape(j.id), expires, m.sign(j.id, expires))
}

func (m *Mount) sign(id, expires string) string {
	key := m.sim.hash("link", m.base)
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(expires + " " + id))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// linkHost is the host of result links, if they are on another.
func (m *Mount) linkHost() (string, bool) {
	base, err := url.Parse(m.options.LinkBase)
	if err != nil || base.Host == "" {
		return "", false
	}
	return base.Host, true
}

// credentialed refuses a request that brings credentials to the other host.
func (c *call) credentialed() (reply, bool) {
	m := c.mount
	if host, ok := m.linkHost(); !ok || host != c.entry.Host {
		return reply{}, false
	}
	names := []string{"Authorization", "Cookie", "X-Api-Key"}
	if m.options.Auth.Header != "" {
		names = append(names, m.options.Auth.Header)
	}
	for _, name := range names {
		if c.header.Get(name) != "" {
			return m.refuse(http.StatusBadRequest, "credentials_refused", "this host takes no credentials"), true
		}
	}
	return reply{}, false
}

// file answers a result link.
func (c *call) file() reply {
	m, j := c.mount, c.job
	if rep, refused := c.credentialed(); refused {
		return rep
	}
	expires := c.query.Get("expires")
	if !hmac.Equal([]byte(c.query.Get("signature")), []byte(m.sign(j.id, expires))) {
		return m.refuse(http.StatusForbidden, "bad_signature", "this link was not made here")
	}
	if nanos, err := strconv.ParseInt(expires, 10, 64); err != nil || c.sim.now().UnixNano() >= nanos {
		status := http.StatusForbidden
		if m.options.ExpiredStatus != 0 {
			status = m.options.ExpiredStatus
		}
		return m.refuse(status, "link_expired", "this link has expired")
	}
	return c.content(j)
}
