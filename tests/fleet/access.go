package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
)

// access is how the server is reached and who may do what there.
type access struct{ address, url string }

// administering are the subjects of those who provision, and of nobody else.
const administering = `"$JS.API.STREAM.CREATE.>", "$JS.API.STREAM.UPDATE.>", "$JS.API.STREAM.DELETE.>", "$JS.API.STREAM.PURGE.>",
        "$JS.API.STREAM.MSG.DELETE.>", "$JS.API.STREAM.RESTORE.>", "$JS.API.STREAM.SNAPSHOT.>", "$JS.API.STREAM.PEER.>", "$JS.API.ACCOUNT.>"`

// makeAccess writes certificates of the server and of its clients, two users and the
// server's configuration.
func makeAccess(t testing.TB, dir string) access {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, content []byte) { must(os.WriteFile(filepath.Join(dir, name), content, 0o600)) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(err)
	private, err := x509.MarshalECPrivateKey(key)
	must(err)
	write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	write("server.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}))
	ours, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	client, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "client"}, NotBefore: template.NotBefore, NotAfter: template.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, template, &ours.PublicKey, key)
	must(err)
	private, err = x509.MarshalECPrivateKey(ours)
	must(err)
	write("client.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client}))
	write("client.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}))
	user := func(name string) string {
		pair, err := nkeys.CreateUser()
		must(err)
		seed, err := pair.Seed()
		must(err)
		write(name+".nk", append(seed, '\n'))
		public, err := pair.PublicKey()
		must(err)
		return public
	}
	// A port that was free a moment ago: roles must find the server there again
	// after it was killed.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	a := access{address: l.Addr().String()}
	must(l.Close())
	a.url = "tls://" + a.address
	write("nats.conf", fmt.Appendf(nil, `listen: %q
server_name: fleet
max_payload: 2097152
jetstream { store_dir: %q }
tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
authorization { users: [
  { nkey: %q }
  { nkey: %q, permissions: { publish: { deny: [%s] } } }
] }
`, a.address, filepath.Join(dir, "nats"), filepath.Join(dir, "ca.pem"), filepath.Join(dir, "server.key"), filepath.Join(dir, "ca.pem"), user("admin"), user("role"), administering))
	return a
}
