package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
)

// TLSFiles are the files of a server's identity.
type TLSFiles struct {
	// Cert and Key are PEM files. Both or neither are needed.
	Cert, Key string
	// ClientCA has the certificates of authorities that sign those of clients. Clients then need
	// one, except for the admin address. Default: none.
	ClientCA string
}

// check returns an error for files that do not go together.
func (f TLSFiles) check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("--tls-cert and --tls-key need each other: give both")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	}
	return nil
}

func (f TLSFiles) paths() []string {
	if f.ClientCA == "" {
		return []string{f.Cert, f.Key}
	}
	return []string{f.Cert, f.Key, f.ClientCA}
}

// identity is what the files have now, for each kind of listener.
type identity struct{ kinds []*tlsKind }

// tlsKind is how one kind of listener uses TLS.
type tlsKind struct {
	protocols []string
	clients   bool // need a certificate if there is a ClientCA
	now       atomic.Pointer[tls.Config]
}

// config returns a configuration that always uses the newest files. A nil identity has none.
func (i *identity) config(clients bool, protocols ...string) *tls.Config {
	if i == nil {
		return nil
	}
	k := &tlsKind{protocols: protocols, clients: clients}
	i.kinds = append(i.kinds, k)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.now.Load(), nil },
	}
}

// use takes the contents of Cert, Key and, if there is one, ClientCA.
func (i *identity) use(contents [][]byte) error {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return err
	}
	var pool *x509.CertPool
	if len(contents) > 2 {
		if pool = x509.NewCertPool(); !pool.AppendCertsFromPEM(contents[2]) {
			return errors.New("--tls-client-ca has no certificate in the form of PEM")
		}
	}
	for _, k := range i.kinds {
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: k.protocols, Certificates: []tls.Certificate{pair}}
		if k.clients && pool != nil {
			c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert
		}
		k.now.Store(c)
	}
	return nil
}
